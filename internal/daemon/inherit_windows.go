package daemon

import "golang.org/x/sys/windows"

// keepToThisProcess prevents programs that this process starts from inheriting its standard handles: a reader of this process's output
// would wait for a daemon's end. Go gives a child a list of its handles, which Wine ignores; Go's other handles cannot be inherited.
func keepToThisProcess() {
	for _, which := range []uint32{windows.STD_INPUT_HANDLE, windows.STD_OUTPUT_HANDLE, windows.STD_ERROR_HANDLE} {
		if h, err := windows.GetStdHandle(which); err == nil && h != 0 && h != windows.InvalidHandle {
			_ = windows.SetHandleInformation(h, windows.HANDLE_FLAG_INHERIT, 0) // a console's pseudo handle has no such flag
		}
	}
}
