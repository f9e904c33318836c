package script

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// serve starts an HTTP server on loopback that answers with a text and the path: serve VARIABLE TEXT.
func serve(ts *testscript.TestScript, _ bool, args []string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, args[1], r.URL.Path)
	}))
	ts.Defer(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], port)
}

// freePort puts a port of loopback that is free for TCP and UDP into a variable: freeport VARIABLE. It is below those that systems give to connections
// and to whoever listens at any port (from 32768 on in Linux, 49152 elsewhere): another test would take one of these before the script does.
func freePort(ts *testscript.TestScript, _ bool, args []string) {
	var err error
	for range 100 {
		address := fmt.Sprint("127.0.0.1:", 10000+rand.IntN(32768-10000))
		var stream net.Listener
		if stream, err = net.Listen("tcp", address); err != nil {
			continue
		}
		var datagrams net.PacketConn
		if datagrams, err = net.ListenPacket("udp", address); err == nil {
			err = datagrams.Close()
		}
		if err = errors.Join(err, stream.Close()); err == nil {
			_, port, _ := net.SplitHostPort(address)
			ts.Setenv(args[0], port)
			return
		}
	}
	ts.Fatalf("no port is free: %v", err)
}

// fetch waits until a URL answers with a text: fetch URL TEXT.
func fetch(ts *testscript.TestScript, _ bool, args []string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	var last string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		response, err := client.Get(args[0])
		if err != nil {
			last = err.Error()
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && strings.Contains(string(body), args[1]) {
			return
		}
		last = fmt.Sprintf("%q, %v", body, err)
	}
	ts.Fatalf("%s: %s", args[0], last)
}

// datagram sends one to an address: datagram ADDRESS.
func datagram(ts *testscript.TestScript, _ bool, args []string) {
	c, err := net.Dial("udp", args[0])
	ts.Check(err)
	_, err = c.Write([]byte("hello"))
	ts.Check(err)
	ts.Check(c.Close())
}

// pcapFile checks that a file is a capture of Ethernet with at least so many frames: pcap FILE COUNT.
func pcapFile(ts *testscript.TestScript, _ bool, args []string) {
	var want int
	_, err := fmt.Sscan(args[1], &want)
	ts.Check(err)
	data, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	magic := map[string]bool{"\xd4\xc3\xb2\xa1": true, "\x4d\x3c\xb2\xa1": true} // little-endian, micro- or nanoseconds
	if len(data) < 24 || !magic[string(data[:4])] || binary.LittleEndian.Uint32(data[20:]) != 1 {
		ts.Fatalf("%s does not begin as a capture of Ethernet", args[0])
	}
	frames := 0
	for data = data[24:]; len(data) >= 16; frames++ {
		size := int(binary.LittleEndian.Uint32(data[8:]))
		if size > len(data)-16 {
			break
		}
		data = data[16+size:]
	}
	if frames < want || len(data) > 0 {
		ts.Fatalf("%d frames, %d bytes left over; want %d frames", frames, len(data), want)
	}
}
