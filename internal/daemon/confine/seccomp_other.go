//go:build linux && !amd64 && !arm64 && !riscv64

package confine

import (
	"fmt"
	"runtime"
)

func seccompAvailable() error { return fmt.Errorf("there is no filter for %s", runtime.GOARCH) }

func filterSystemCalls(Rules) Layer { return layer(nameSeccomp, "", seccompAvailable()) }
