package netstack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"gvisor.dev/gvisor/pkg/tcpip"
)

func startCapture(to io.Writer, log io.Writer) *capture {
	c := newCapture(to, tcpip.NewStdClock(), slog.New(slog.NewTextHandler(log, nil)))
	go c.run()
	return c
}

func TestCaptureIsAPcap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file bytes.Buffer
		c := startCapture(&file, io.Discard)
		frames := [][]byte{filled(frameMin, 1), filled(60, 2), filled(frameMax, 3)}
		var at []time.Time
		for _, f := range frames {
			time.Sleep(1500 * time.Millisecond)
			at = append(at, time.Now())
			c.record(offload{}, f)
		}
		c.stop()
		r, err := pcapgo.NewReader(&file)
		if err != nil {
			t.Fatal(err)
		}
		if r.LinkType() != layers.LinkTypeEthernet {
			t.Errorf("link type %v", r.LinkType())
		}
		for i, want := range frames {
			got, info, err := r.ReadPacketData()
			if err != nil || !bytes.Equal(got, want) || info.Length != len(want) || !info.Timestamp.Equal(at[i]) {
				t.Errorf("frame %d: %d bytes at %v, error %v; want %d at %v", i, len(got), info.Timestamp, err, len(want), at[i])
			}
		}
		if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
			t.Errorf("after the last frame: %v", err)
		}
		if n := c.frames.Load(); n != 3 {
			t.Errorf("counted %d frames, want 3", n)
		}
	})
}

func TestCaptureWithoutFramesHasAHeader(t *testing.T) {
	var file bytes.Buffer
	startCapture(&file, io.Discard).stop()
	if _, err := pcapgo.NewReader(&file); err != nil {
		t.Error(err)
	}
}

// gate is a writer that writes nothing before it is opened.
type gate struct {
	open chan struct{}
	bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	return g.Buffer.Write(p)
}

func TestCaptureOfSlowWriterLosesFrames(t *testing.T) {
	file := &gate{open: make(chan struct{})}
	c := startCapture(file, io.Discard)
	const n = 3 * captureBuffer / frameMax
	for range n {
		c.record(offload{}, filled(frameMax, 1)) // the test would not end if this waited
	}
	lost := c.lost.Load()
	if lost == 0 || lost == n {
		t.Errorf("lost %d of %d frames", lost, n)
	}
	close(file.open)
	c.stop()
	if got := c.frames.Load(); got+lost != n {
		t.Errorf("%d frames written and %d lost of %d", got, lost, n)
	}
	if _, err := pcapgo.NewReader(file); err != nil {
		t.Error(err)
	}
}

func TestCaptureOfStuckWriterIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, log := &gate{open: make(chan struct{})}, &bytes.Buffer{}
		c := startCapture(file, log)
		c.record(offload{}, filled(60, 1))
		start := time.Now()
		c.stop()
		if took := time.Since(start); took != captureGrace {
			t.Errorf("stop took %v, want %v", took, captureGrace)
		}
		if !strings.Contains(log.String(), "does not return") {
			t.Errorf("log: %s", log)
		}
		close(file.open)
		<-c.done
	})
}

// failing fails after some bytes.
type failing struct{ left int }

func (f *failing) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

func TestCaptureOfFailingWriterEnds(t *testing.T) {
	for name, left := range map[string]int{"file header": 0, "first frame": 30} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c := startCapture(&failing{left}, &log)
			c.record(offload{}, filled(100, 1))
			<-c.done
			c.record(offload{}, filled(100, 1))
			c.stop()
			if c.lost.Load() != 2 || strings.Count(log.String(), "disk full") != 1 {
				t.Errorf("lost %d, log: %s", c.lost.Load(), log.String())
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.pending) > 0 {
				t.Errorf("%d bytes are kept after the failure", len(c.pending))
			}
		})
	}
}

// TestCaptureReadByTshark has Wireshark's own parser read what a link captured.
func TestCaptureReadByTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI has no tshark: install the package tshark")
		}
		t.Skip("no tshark")
	}
	path := filepath.Join(t.TempDir(), "link.pcap")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := startCapture(file, io.Discard)
	for _, f := range [][]byte{
		arpFrame(1, macGuest, addrGuest, addrGateway),
		testFrame{transport: protoTCP, payload: tcpSegment(10)}.bytes(),
		testFrame{source: addrGuest6, destination: addrServer6, transport: protoUDP, payload: udpSegment(1000, 2000, 30)}.bytes(),
		testFrame{transport: protoTCP, payload: tcpSegment(60000), partial: true}.bytes(), // as with offload
	} {
		c.record(offload{}, f)
	}
	c.stop()
	command := exec.CommandContext(t.Context(), tshark, "-n", "-r", path, "-T", "fields", "-E", "separator=|", "-e", "frame.protocols", "-e", "frame.len", "-e", "eth.src")
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	const want = "eth:ethertype:arp|42|02:00:00:00:00:01\n" +
		"eth:ethertype:ip:tcp|64|02:00:00:00:00:01\n" +
		"eth:ethertype:ipv6:udp:data|92|02:00:00:00:00:01\n" +
		"eth:ethertype:ip:tcp|60054|02:00:00:00:00:01\n"
	if string(out) != want {
		t.Errorf("tshark says\n%swant\n%s", out, want)
	}
}

// TestCaptureHasWholeChecksums: what a device leaves out for the next one to complete is there in the file, or programs that read it
// would call every packet broken.
func TestCaptureHasWholeChecksums(t *testing.T) {
	var file bytes.Buffer
	t.Run("exchange", func(t *testing.T) { // at its end the file is written
		config := linkDefaults(t)
		config.header, config.capture = true, &file
		near, far := connectStacks(t, newLinkPair(t, config), addrGateway)
		exchangeRandom(t, near, far, 2<<20) // frames are of 64 KiB at most: 32 and more
	})
	inspector, packets := &frameInspector{t: t}, 0
	for b := file.Bytes()[24:]; len(b) > 0; {
		length := binary.LittleEndian.Uint32(b[8:])
		frame := b[16 : 16+length]
		b = b[16+length:]
		p := inspector.parse(frame)
		if p.transport != protoTCP {
			continue
		}
		packets++
		if !p.checksumRight() {
			t.Fatalf("packet %d of %d bytes has a wrong checksum", packets, length)
		}
	}
	if packets < 20 {
		t.Errorf("%d packets in the file", packets)
	}
}
