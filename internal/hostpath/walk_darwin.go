package hostpath

import "os"

// searchFlag opens a directory that may be searched and not read: O_EXEC, which with O_DIRECTORY is O_SEARCH.
const searchFlag = 0x40000000

// hold returns nothing, because this system cannot hold a file without opening it.
func hold(int, string, string) (*os.File, error) { return nil, nil }

// isMagic returns false, because all links here are names.
func isMagic(int) bool { return false }
