// The directories that a runtime gives to a standalone machine, as one virtio-fs share. Its root has a folder for each, named 0, 1, ...
// standalone_nodes.c knows the files that the guest knows, standalone_fuse.c does what requests say, standalone_share.c passes them on.
#ifndef AGENTVM_STANDALONE_SHARE_H
#define AGENTVM_STANDALONE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "wasi.h"

// WASI's functions about files, and their numbers.
struct wasi_fdstat {
    uint8_t filetype;
    uint16_t flags;
    uint64_t rights, inheriting;
};
struct wasi_prestat {
    uint8_t tag; // 0: a directory
    uint32_t length;
};
enum { WASI_DIRECTORY = 3, WASI_REGULAR_FILE = 4, WASI_SYMBOLIC_LINK = 7 };
enum { WASI_CREAT = 1, WASI_O_DIRECTORY = 2, WASI_EXCL = 4 };

WASI_IMPORT(fd_prestat_get) uint16_t wasi_fd_prestat_get(int32_t fd, struct wasi_prestat *stat);
WASI_IMPORT(fd_prestat_dir_name) uint16_t wasi_fd_prestat_dir_name(int32_t fd, char *name, uint32_t length);
WASI_IMPORT(fd_fdstat_get) uint16_t wasi_fd_fdstat_get(int32_t fd, struct wasi_fdstat *stat);
WASI_IMPORT(fd_close) uint16_t wasi_fd_close(int32_t fd);
WASI_IMPORT(fd_readdir) uint16_t wasi_fd_readdir(int32_t fd, void *to, uint32_t size, uint64_t cookie, uint32_t *used);
WASI_IMPORT(fd_filestat_set_size) uint16_t wasi_fd_filestat_set_size(int32_t fd, uint64_t size);
WASI_IMPORT(path_open)
uint16_t wasi_path_open(int32_t fd, uint32_t look, const char *path, uint32_t length, uint32_t how, uint64_t rights, uint64_t inheriting, uint32_t flags, int32_t *opened);
WASI_IMPORT(path_filestat_get) uint16_t wasi_path_filestat_get(int32_t fd, uint32_t look, const char *path, uint32_t length, struct wasi_filestat *stat);
WASI_IMPORT(path_filestat_set_times)
uint16_t wasi_path_filestat_set_times(int32_t fd, uint32_t look, const char *path, uint32_t length, uint64_t accessed, uint64_t modified, uint32_t which);
WASI_IMPORT(path_create_directory) uint16_t wasi_path_create_directory(int32_t fd, const char *path, uint32_t length);
WASI_IMPORT(path_remove_directory) uint16_t wasi_path_remove_directory(int32_t fd, const char *path, uint32_t length);
WASI_IMPORT(path_unlink_file) uint16_t wasi_path_unlink_file(int32_t fd, const char *path, uint32_t length);
WASI_IMPORT(path_rename) uint16_t wasi_path_rename(int32_t fd, const char *path, uint32_t length, int32_t to_fd, const char *to, uint32_t to_length);
WASI_IMPORT(path_link)
uint16_t wasi_path_link(int32_t fd, uint32_t look, const char *path, uint32_t length, int32_t to_fd, const char *to, uint32_t to_length);
WASI_IMPORT(path_symlink) uint16_t wasi_path_symlink(const char *target, uint32_t target_length, int32_t fd, const char *path, uint32_t length);
WASI_IMPORT(path_readlink) uint16_t wasi_path_readlink(int32_t fd, const char *path, uint32_t length, char *to, uint32_t size, uint32_t *used);

// Directories and nodes ------------------------------------------------------------------------------------------

enum { NODE_ROOT = 1, NODE_FIRST = 2, MAX_DIRS = 64, NAME_MAX = 255, PATH_MAX = 4096 };

extern struct directory {
    int32_t fd;
    uint64_t rights; // that files in it can have
    char name[PATH_MAX];
} directories[MAX_DIRS];

// find_directories looks for what the runtime gave, and returns how many there are.
uint32_t find_directories(void);

struct listing;

// A place is a path below a directory of the runtime.
struct place {
    const struct directory *in;
    uint32_t length;
    const char *path;
    char buffer[PATH_MAX];
};

// node_place finds where a node is, or a name in it; it returns an errno of Linux.
uint32_t node_place(uint64_t node, const char *name, struct place *place);

// node_enter returns the node of a name in a folder, which the guest then knows once more; 0: there are too many. ino tells files apart that
// had the same name one after another.
uint32_t node_enter(uint64_t folder, const char *name, uint64_t ino);
void node_forget(uint64_t node, uint64_t times);
// node_gone follows when the name was removed, node_moved when it has another one.
void node_gone(uint64_t folder, const char *name);
void node_moved(uint64_t folder, const char *name, uint64_t to_folder, const char *to_name);

// Listings -------------------------------------------------------------------------------------------------------

// new_page gives 64 KiB of linear memory, which grows by them; NULL: it cannot.
void *new_page(void);

// read_listing reads a directory and puts the listing in the place of the old one; it returns an errno of Linux. put_listing puts FUSE's entries of
// it (ino[8] next[8] length[4] type[4] name, a multiple of 8) to `to`, from a position on that one of them has as next, or 0, and returns their size.
uint32_t read_listing(int32_t fd, struct listing **listing);
uint32_t put_listing(const struct listing *listing, uint64_t from, uint8_t *to, uint32_t size);
void free_listing(struct listing *listing);

// FUSE -----------------------------------------------------------------------------------------------------------

struct in_header {
    uint32_t length, opcode;
    uint64_t unique, node;
    uint32_t uid, gid, pid, reserved;
};
struct out_header {
    uint32_t length;
    int32_t error;
    uint64_t unique;
};

enum { FUSE_MAX_DATA = 128 << 10, FUSE_MAX_REQUEST = FUSE_MAX_DATA + 4096, FUSE_MAX_REPLY = FUSE_MAX_DATA + 64 };

// fuse_answer does what a request of `size` bytes says, which some hundred zeros follow. It returns the size of the reply; 0: there is none.
uint32_t fuse_answer(const struct in_header *request, uint32_t size, struct out_header *reply);

// What the share's descriptor does. share_has_more says that the driver has to do something before the machine may sleep.
uint16_t share_write(const struct wasi_iovec *iovs, uint32_t count, uint32_t *done);
uint16_t share_read(const struct wasi_iovec *iovs, uint32_t count, uint32_t *done);
uint16_t share_poll(const struct wasi_subscription *in, struct wasi_event *found, uint32_t count, uint32_t *events);
bool share_has_more(void);

#endif
