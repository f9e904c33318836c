package kernel_test

import (
	"encoding/binary"
	"fmt"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine/kernel"
)

// Where the image goes is in its header: text_offset bytes after the start of RAM.
func ExampleImage() {
	image, err := kernel.Image(platform.RISCV64)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s, text_offset %d KiB\n", image[0x30:0x35], binary.LittleEndian.Uint64(image[8:])>>10)
	// Output: RISCV, text_offset 2048 KiB
}
