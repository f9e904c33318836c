package rpc

import (
	"fmt"

	"agentvm/rpc/wire"
)

func writePortRanges(make func(int32) (wire.PortRange_List, error), list []PortRange) error {
	if len(list) == 0 {
		return nil
	}
	if len(list) > MaxPortRanges {
		return fmt.Errorf("%d ranges of ports: at most %d can be told to a guest", len(list), MaxPortRanges)
	}
	w, err := make(int32(len(list)))
	if err != nil {
		return err
	}
	for i, r := range list {
		w.At(i).SetFirst(r.First)
		w.At(i).SetLast(r.Last)
	}
	return nil
}

func readPortRanges(w wire.PortRange_List, err error) ([]PortRange, error) {
	if err != nil || w.Len() == 0 {
		return nil, err
	}
	if w.Len() > MaxPortRanges {
		return nil, fmt.Errorf("%d ranges of ports: want at most %d", w.Len(), MaxPortRanges)
	}
	list := make([]PortRange, w.Len())
	for i := range list {
		list[i] = PortRange{w.At(i).First(), w.At(i).Last()}
	}
	return list, nil
}
