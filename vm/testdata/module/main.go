// A stand-in for what container2wasm makes: a WASI module whose entry takes the same arguments, listens and accepts as that does, and has
// a console with a shell on its standard streams. Instead of an emulated Linux there is a handful of commands. TestRunModule runs it.
package main

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func main() {
	network, mac := flag.String("net", "", ""), flag.String("mac", "", "")
	entrypoint := flag.String("entrypoint", "", "")
	flag.Parse()
	switch os.Getenv("LISTEN_FDS") + *network {
	case "", "1socket":
	default:
		fail("LISTEN_FDS and -net do not fit")
	}
	fmt.Print("==========\r\nstand-in boots\r\n")
	if *entrypoint != "/bin/sh" || flag.NArg() != 2 || flag.Arg(0) != "-c" {
		fail(fmt.Sprintf("not a shell: %q %q", *entrypoint, flag.Args()))
	}
	marker := regexp.MustCompile(`;m=(agentvm[0-9a-f]{32});`).FindStringSubmatch(flag.Arg(1))
	if marker == nil {
		fail("no marker")
	}
	fmt.Printf("\r\n%s<\r\n", marker[1])
	console := bufio.NewReader(os.Stdin)
	var script strings.Builder
	for {
		line, err := console.ReadString('\n')
		if err != nil {
			fail(err.Error()) // as TinyEMU does
		}
		if line == ".\n" {
			break
		}
		script.WriteString(strings.TrimSuffix(line, "\n"))
		fmt.Printf("\r\n%s+\r\n", marker[1])
	}
	text := regexp.MustCompile(`\\0[0-7]{3}`).ReplaceAllStringFunc(script.String(), func(octal string) string {
		c, _ := strconv.ParseUint(octal[2:], 8, 8)
		return string([]byte{byte(c)})
	})
	fmt.Printf("\r\n%s=\r\n", marker[1])
	command := regexp.MustCompile(`(?s)/bin/sh -c '(.*?)' 2>&1( </dev/null)?\n`).FindStringSubmatch(text)
	if command == nil {
		fail("no command: " + text)
	}
	code := run(strings.Fields(command[1]), text, marker[1], *mac, console)
	fmt.Printf("\r\n%s>%d\r\n", marker[1], code)
	time.Sleep(time.Hour) // the host does not wait for the guest to power off
}

func run(words []string, script, marker, mac string, console *bufio.Reader) int {
	switch words[0] {
	case "script":
		fmt.Print(strings.ReplaceAll(script, "\n", "\r\n"))
	case "lines":
		fmt.Print("one\r\n\r\n", marker, " two\r\n\rthree")
	case "exit":
		code, _ := strconv.Atoi(words[1])
		return code
	case "die":
		os.Exit(9)
	case "hang":
		fmt.Print("before")
		time.Sleep(time.Hour)
	case "spin":
		for {
		}
	case "cat":
		text, err := os.ReadFile(words[1])
		if err != nil {
			fmt.Print(err)
			return 1
		}
		os.Stdout.Write(text)
	case "size":
		info, err := os.Stat(words[1])
		if err != nil {
			fmt.Print(err)
			return 1
		}
		fmt.Print(info.Size(), " bytes")
	case "write":
		if err := os.WriteFile(words[1], []byte("written"), 0o600); err != nil {
			fmt.Print(err)
			return 1
		}
	case "input":
		text, err := console.ReadString(4)
		fmt.Printf("%q %v", text, err)
	case "gateway":
		return gateway(mac)
	}
	return 0
}

// gateway sends a DHCPDISCOVER over the accepted connection, with QEMU's framing, and prints the message type of the answer.
func gateway(mac string) int {
	file := os.NewFile(3, "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		fmt.Print(err)
		return 1
	}
	conn, err := listener.Accept()
	if err != nil {
		fmt.Print(err)
		return 1
	}
	source, err := net.ParseMAC(mac)
	if err != nil {
		fmt.Print(err)
		return 1
	}
	dhcp := make([]byte, 240)
	dhcp[0], dhcp[1], dhcp[2] = 1, 1, 6
	copy(dhcp[4:], "abcd")
	dhcp[10] = 0x80 // answer by broadcast
	copy(dhcp[28:], source)
	copy(dhcp[236:], []byte{99, 130, 83, 99})
	dhcp = append(dhcp, 53, 1, 1, 255)
	udp := make([]byte, 8, 8+len(dhcp))
	binary.BigEndian.PutUint16(udp, 68)
	binary.BigEndian.PutUint16(udp[2:], 67)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(dhcp)))
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+8+len(dhcp)))
	copy(ip[16:], []byte{255, 255, 255, 255})
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	frame := append([]byte{255, 255, 255, 255, 255, 255}, source...)
	frame = append(frame, 8, 0)
	frame = append(append(append(frame, ip...), udp...), dhcp...)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
		fmt.Print(err)
		return 1
	}
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			fmt.Print(err)
			return 1
		}
		answer := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, answer); err != nil {
			fmt.Print(err)
			return 1
		}
		if len(answer) > 285 && answer[12] == 8 && answer[23] == 17 && answer[37] == 68 {
			for options := answer[282:]; len(options) > 2 && len(options) > int(options[1])+2; options = options[options[1]+2:] {
				if options[0] == 53 {
					fmt.Printf("option 53: %d for %s", options[2], answer[46:50])
					return 0
				}
			}
		}
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(3)
}
