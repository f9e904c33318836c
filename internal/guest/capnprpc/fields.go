package capnprpc

import (
	"fmt"
	"net/netip"

	"capnproto.org/go/capnp/v3"

	"agentvm/internal/guest/capnprpc/streamwire"
)

// WriteTexts fills a list made by create; an empty list stays null.
func WriteTexts(create func(int32) (capnp.TextList, error), texts []string) error {
	if len(texts) == 0 {
		return nil
	}
	list, err := create(int32(len(texts)))
	if err != nil {
		return err
	}
	for i, s := range texts {
		if err := list.Set(i, s); err != nil {
			return err
		}
	}
	return nil
}

func ReadTexts(list capnp.TextList, err error) ([]string, error) {
	if err != nil || list.Len() == 0 {
		return nil, err
	}
	texts := make([]string, list.Len())
	for i := range texts {
		if texts[i], err = list.At(i); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// WriteList fills a list made by create; an empty list stays null.
func WriteList[W ~capnp.StructKind, T any](create func(int32) (capnp.StructList[W], error), values []T, write func(T, W) error) error {
	if len(values) == 0 {
		return nil
	}
	list, err := create(int32(len(values)))
	for i := 0; err == nil && i < len(values); i++ {
		err = write(values[i], list.At(i))
	}
	return err
}

// ReadList has read decode each element of a list, which may have at most limit. Decoding returns err if there is one.
func ReadList[W ~capnp.StructKind, T any](list capnp.StructList[W], err error, limit int, read func(W) (T, error)) ([]T, error) {
	if err != nil || list.Len() == 0 {
		return nil, err
	}
	if list.Len() > limit {
		return nil, fmt.Errorf("a list of %d elements in a message: it can have at most %d", list.Len(), limit)
	}
	values := make([]T, list.Len())
	for i := range values {
		if values[i], err = read(list.At(i)); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// WriteData fills a list made by create.
func WriteData(create func(int32) (capnp.DataList, error), texts []string) error {
	list, err := create(int32(len(texts)))
	for i := 0; err == nil && i < len(texts); i++ {
		err = list.Set(i, []byte(texts[i]))
	}
	return err
}

// FieldReader reads fields and remembers the first error.
type FieldReader struct{ Err error }

func (r *FieldReader) Keep(err error) {
	if r.Err == nil {
		r.Err = err
	}
}

func (r *FieldReader) Text(s string, err error) string {
	r.Keep(err)
	return s
}

func (r *FieldReader) Texts(list capnp.TextList, err error) []string {
	texts, err := ReadTexts(list, err)
	r.Keep(err)
	return texts
}

func (r *FieldReader) Data(b []byte, err error) []byte {
	b, err = CopyData(b, err)
	r.Keep(err)
	return b
}

func CopyData(b []byte, err error) ([]byte, error) {
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return append([]byte(nil), b...), nil
}

// WriteEndpoint leaves an invalid address null.
func WriteEndpoint(create func() (streamwire.Endpoint, error), a netip.AddrPort) error {
	if !a.IsValid() {
		return nil
	}
	w, err := create()
	if err != nil {
		return err
	}
	w.SetPort(a.Port())
	return w.SetAddress(a.Addr().AsSlice())
}

func ReadEndpoint(w streamwire.Endpoint, err error) (netip.AddrPort, error) {
	if err != nil || !w.IsValid() {
		return netip.AddrPort{}, err
	}
	b, err := w.Address()
	if err != nil {
		return netip.AddrPort{}, err
	}
	address, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("network address of %d bytes", len(b))
	}
	return netip.AddrPortFrom(address.Unmap(), w.Port()), nil
}
