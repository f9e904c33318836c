package translations

import "golang.org/x/sys/windows"

// available is how many bytes the user may still write where a folder is.
func available(dir string) (uint64, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var n uint64
	err = windows.GetDiskFreeSpaceEx(name, &n, nil, nil)
	return n, err
}
