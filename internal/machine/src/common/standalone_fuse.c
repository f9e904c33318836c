// FUSE, as in Linux's include/uapi/linux/fuse.h, on the files of the runtime: what its requests do. standalone_share.c has the stream of them.
//
// WASI knows no modes and owners: every file is root's and everybody's to use, and what changes them has no effect.
#ifdef AGENTVM_STANDALONE
#define STANDALONE_ITSELF
#include "standalone_share.h"

enum { FUSE_LOOKUP = 1, FUSE_FORGET, FUSE_GETATTR, FUSE_SETATTR, FUSE_READLINK, FUSE_SYMLINK, FUSE_MKNOD = 8, FUSE_MKDIR, FUSE_UNLINK, FUSE_RMDIR,
       FUSE_RENAME, FUSE_LINK, FUSE_OPEN, FUSE_READ, FUSE_WRITE, FUSE_STATFS, FUSE_RELEASE, FUSE_FSYNC = 20, FUSE_INIT = 26, FUSE_OPENDIR,
       FUSE_READDIR, FUSE_RELEASEDIR, FUSE_FSYNCDIR, FUSE_CREATE = 35, FUSE_INTERRUPT, FUSE_DESTROY = 38, FUSE_BATCH_FORGET = 42, FUSE_RENAME2 = 45 };
enum { LINUX_EPERM = 1, LINUX_ENOENT = 2, LINUX_EIO = 5, LINUX_EBADF = 9, LINUX_EINVAL = 22, LINUX_ENFILE = 23, LINUX_EMFILE = 24, LINUX_ENOSYS = 38 };
enum { O_ACCMODE = 3, O_WRONLY = 1, O_EXCL = 0200, S_IFMT = 0170000, S_IFREG = 0100000, S_IFDIR = 0040000, S_IFLNK = 0120000, ALL = 0777 };
enum { MAX_HANDLES = 1024 };
enum { FUSE_ASYNC_READ = 1 << 0, FUSE_BIG_WRITES = 1 << 5, FUSE_AUTO_INVAL_DATA = 1 << 12, FUSE_PARALLEL_DIROPS = 1 << 18 };

struct attributes {
    uint64_t ino, size, blocks, accessed, modified, changed;
    uint32_t accessed_ns, modified_ns, changed_ns, mode, links, uid, gid, device, block, flags;
};
struct entry {
    uint64_t node, generation, valid, attributes_valid;
    uint32_t valid_ns, attributes_valid_ns;
    struct attributes attributes;
};
struct opened {
    uint64_t handle;
    uint32_t flags, reserved;
};

static const struct in_header *header; // of the request under way; zeros follow it, so texts in it end, and what is missing is 0
static uint32_t have;                 // bytes that it has
static uint8_t *out;                  // behind the header of the reply
static uint32_t out_size;             // what was put there
static struct place place, other;

static struct handle {
    int32_t fd; // + 1; 0: free
    uint64_t node;
    struct listing *listing; // of a directory
} handles[MAX_HANDLES];

// Numbers of errors, by WASI's (witx "errno").
static uint32_t linux_error(uint16_t error) {
    static const uint8_t numbers[] = {
        0,  7,  13, 98, 99, 97, 11, 114, 9,   74, 16, 125, 10, 103, 111, 104, 35, 89, 33, 122, 17, 14, 27, 113, 43, 84, 115, 4,  22, 5,   106, 21, 40, 24, 31, 90, 72, 36, 100,
        102, 101, 23, 105, 19, 2, 8,   37, 67, 12, 42, 92, 28, 38, 107, 20, 39, 131, 88, 95, 25, 6,  75, 130, 1,  32, 71, 93, 91, 34, 30,  29, 3,  116, 110, 26, 18, 13,
    };
    return error < sizeof numbers ? numbers[error] : LINUX_EIO;
}

static void *put(uint32_t size) {
    void *at = out + out_size;
    __builtin_memset(at, 0, size);
    out_size += size;
    return at;
}

static const uint8_t *body(void) { return (const uint8_t *)(header + 1); }
static uint64_t word64(uint32_t at) {
    uint64_t value;
    __builtin_memcpy(&value, body() + at, 8);
    return value;
}
static uint32_t word32(uint32_t at) { return (uint32_t)word64(at); }

static uint32_t length_of(const char *text) {
    uint32_t length = 0;
    while (text[length] != 0) length++;
    return length;
}

// name_at returns the name at a place of the body, or NULL for one that no file has.
static const char *name_at(uint32_t at) {
    const char *name = (const char *)body() + at;
    uint32_t length = 0;
    for (; name[length] != 0; length++)
        if (name[length] == '/' || length >= NAME_MAX) return 0;
    bool dots = name[0] == '.' && (length == 1 || (length == 2 && name[1] == '.'));
    return length == 0 || dots ? 0 : name;
}

// Attributes and names -------------------------------------------------------------------------------------------

static void put_attributes(struct attributes *to, const struct wasi_filestat *stat, uint64_t node) {
    const uint64_t second = 1000000000;
    uint32_t kind = stat->filetype == WASI_DIRECTORY ? S_IFDIR : stat->filetype == WASI_SYMBOLIC_LINK ? S_IFLNK : S_IFREG;
    *to = (struct attributes){
        .ino = stat->ino != 0 ? stat->ino : node, .size = stat->size, .blocks = (stat->size + 511) / 512, .mode = kind | ALL,
        .accessed = stat->atim / second, .accessed_ns = (uint32_t)(stat->atim % second), .modified = stat->mtim / second,
        .modified_ns = (uint32_t)(stat->mtim % second), .changed = stat->ctim / second, .changed_ns = (uint32_t)(stat->ctim % second),
        .links = stat->nlink != 0 ? (uint32_t)stat->nlink : 1, .block = 4096,
    };
}

static uint32_t attributes_of(uint64_t node, struct wasi_filestat *stat) {
    *stat = (struct wasi_filestat){.filetype = WASI_DIRECTORY, .ino = NODE_ROOT};
    if (node == NODE_ROOT) return 0;
    uint32_t error = node_place(node, 0, &place);
    if (!error) return linux_error(wasi_path_filestat_get(place.in->fd, 0, place.path, place.length, stat));
    for (uint32_t handle = 0; handle < MAX_HANDLES; handle++) // a file without a name can still be open
        if (handles[handle].fd != 0 && handles[handle].node == node) return linux_error(wasi_fd_filestat_get(handles[handle].fd - 1, stat));
    return error;
}

static uint32_t answer_attributes(uint64_t node) {
    struct wasi_filestat stat;
    uint32_t error = attributes_of(node, &stat);
    if (error) return error;
    *(uint64_t *)put(16) = 1; // seconds that they are valid
    put_attributes(put(sizeof(struct attributes)), &stat, node);
    return 0;
}

// answer_entry tells of a name in the folder that the request is about.
static uint32_t answer_entry(const char *name) {
    uint64_t folder = header->node, node = 0;
    struct wasi_filestat stat;
    if (name == 0) return LINUX_EINVAL;
    if (folder == NODE_ROOT) { // folders are numbers
        uint32_t number = 0;
        for (const char *digit = name; *digit != 0 && number < MAX_DIRS; digit++) number = number * 10 + (uint8_t)(*digit - '0');
        node = NODE_FIRST + (uint64_t)number;
        uint32_t error = number < MAX_DIRS ? attributes_of(node, &stat) : LINUX_ENOENT;
        if (error) return error;
    } else {
        uint32_t error = node_place(folder, name, &place);
        if (error) return error;
        error = linux_error(wasi_path_filestat_get(place.in->fd, 0, place.path, place.length, &stat));
        if (error) return error;
        node = node_enter(folder, name, stat.ino);
        if (node == 0) return LINUX_ENFILE;
    }
    struct entry *entry = put(sizeof *entry);
    entry->node = node;
    entry->valid = entry->attributes_valid = 1;
    put_attributes(&entry->attributes, &stat, node);
    return 0;
}

// Open files -----------------------------------------------------------------------------------------------------

static int32_t fd_of(uint64_t handle) { return handle < MAX_HANDLES ? handles[handle].fd - 1 : -1; }

// open_place opens a file, for reading and writing as Linux's flags say, or a directory.
static uint32_t open_place(uint32_t flags, uint32_t how, int32_t *fd) {
    enum { READ = 1 << 1, WRITE = 1 << 6, READDIR = 1 << 14 };
    enum { SYNC = 1 << 0 | 1 << 4, SEEK = 1 << 2 | 1 << 5, STAT = 1 << 21, CHANGE = 1 << 8 | 1 << 22 | 1 << 23 };
    bool reads = (flags & O_ACCMODE) != O_WRONLY, writes = (flags & O_ACCMODE) != 0;
    uint64_t needed = (reads ? READ : 0) | (writes ? WRITE : 0), useful = SYNC | SEEK | STAT | (writes ? CHANGE : 0);
    if (how & WASI_O_DIRECTORY) needed = READDIR, useful = STAT;
    return linux_error(wasi_path_open(place.in->fd, 0, place.path, place.length, how, needed | (useful & place.in->rights), 0, 0, fd));
}

// answer_open opens what `place` is, or was made.
static uint32_t answer_open(uint32_t flags, uint32_t how) {
    uint32_t handle = 0;
    while (handle < MAX_HANDLES && handles[handle].fd != 0) handle++;
    if (handle == MAX_HANDLES) return LINUX_EMFILE;
    int32_t fd;
    uint32_t error = open_place(flags, how, &fd);
    if (error) return error;
    handles[handle] = (struct handle){.fd = fd + 1, .node = header->node};
    ((struct opened *)put(sizeof(struct opened)))->handle = handle;
    return 0;
}

static void close_handle(uint64_t handle) {
    int32_t fd = fd_of(handle);
    if (fd < 0) return;
    handles[handle].fd = 0;
    free_listing(handles[handle].listing);
    wasi_fd_close(fd);
}

static uint32_t answer_create(void) {
    uint32_t flags = word32(0);
    const char *name = name_at(16);
    if (name == 0) return LINUX_EINVAL;
    uint32_t error = node_place(header->node, name, &place);
    if (error) return error;
    out_size = sizeof(struct entry); // which comes first, but only the file that was made has one
    error = answer_open(flags, WASI_CREAT | (flags & O_EXCL ? WASI_EXCL : 0));
    if (error) return error;
    uint64_t handle = ((struct opened *)(out + sizeof(struct entry)))->handle;
    out_size = 0;
    if ((error = answer_entry(name))) {
        close_handle(handle);
        return error;
    }
    handles[handle].node = ((struct entry *)out)->node;
    out_size += sizeof(struct opened);
    return 0;
}

static uint32_t answer_read(void) {
    int32_t fd = fd_of(word64(0));
    uint32_t size = word32(16);
    if (fd < 0) return LINUX_EBADF;
    struct wasi_iovec to = {(uint32_t)(uintptr_t)out, size < FUSE_MAX_DATA ? size : FUSE_MAX_DATA};
    uint32_t error = linux_error(wasi_fd_pread(fd, &to, 1, word64(8), &out_size));
    return error ? error : out_size > to.len ? LINUX_EIO : 0;
}

static uint32_t answer_write(void) {
    enum { HEAD = 40 };
    int32_t fd = fd_of(word64(0));
    uint32_t size = word32(16), done = 0;
    if (fd < 0) return LINUX_EBADF;
    if (size > have - sizeof *header - HEAD || have < sizeof *header + HEAD) return LINUX_EINVAL;
    struct wasi_iovec from = {(uint32_t)(uintptr_t)(body() + HEAD), size};
    uint32_t error = linux_error(wasi_fd_pwrite(fd, &from, 1, word64(8), &done));
    *(uint32_t *)put(8) = done;
    return error;
}

static uint32_t answer_list(void) {
    uint64_t handle = word64(0), from = word64(8);
    uint32_t size = word32(16);
    if (fd_of(handle) < 0) return LINUX_EBADF;
    uint32_t error = from == 0 ? read_listing(fd_of(handle), &handles[handle].listing) : 0;
    if (!error) out_size = put_listing(handles[handle].listing, from, out, size < FUSE_MAX_DATA ? size : FUSE_MAX_DATA);
    return error;
}

// Changes --------------------------------------------------------------------------------------------------------

static uint32_t set_size(uint32_t valid, uint64_t size) {
    enum { HANDLE = 1 << 6 };
    int32_t fd = valid & HANDLE ? fd_of(word64(8)) : -1;
    if (fd >= 0) return linux_error(wasi_fd_filestat_set_size(fd, size));
    uint32_t error = open_place(O_WRONLY, 0, &fd);
    if (error) return error;
    error = linux_error(wasi_fd_filestat_set_size(fd, size));
    wasi_fd_close(fd);
    return error;
}

static uint32_t answer_change(void) {
    enum { SIZE = 1 << 3, ACCESSED = 1 << 4, MODIFIED = 1 << 5, ACCESSED_NOW = 1 << 7, MODIFIED_NOW = 1 << 8 };
    const uint64_t second = 1000000000;
    uint32_t valid = word32(0), which = 0, error = node_place(header->node, 0, &place);
    if (!error && valid & SIZE) error = set_size(valid, word64(16));
    if (valid & ACCESSED) which |= valid & ACCESSED_NOW ? 2 : 1;
    if (valid & MODIFIED) which |= valid & MODIFIED_NOW ? 8 : 4;
    if (!error && which != 0)
        error = linux_error(wasi_path_filestat_set_times(place.in->fd, 0, place.path, place.length, word64(32) * second + word32(56),
                                                         word64(40) * second + word32(60), which));
    return error ? error : answer_attributes(header->node);
}

// make makes a name by a function of WASI. at: where the name is in the body.
static uint32_t make(uint32_t at, uint16_t (*function)(int32_t fd, const char *path, uint32_t length)) {
    const char *name = name_at(at);
    if (name == 0) return LINUX_EINVAL;
    uint32_t error = node_place(header->node, name, &place);
    if (!error) error = linux_error(function(place.in->fd, place.path, place.length));
    return error ? error : answer_entry(name);
}

static uint16_t make_file(int32_t fd, const char *path, uint32_t length) {
    enum { READ = 1 << 1 };
    int32_t opened;
    uint16_t error = wasi_path_open(fd, 0, path, length, WASI_CREAT | WASI_EXCL, READ, 0, 0, &opened);
    if (error == WASI_ESUCCESS) wasi_fd_close(opened);
    return error;
}

static uint16_t make_link(int32_t fd, const char *path, uint32_t length) {
    const char *target = (const char *)body() + length_of((const char *)body()) + 1;
    return wasi_path_symlink(target, length_of(target), fd, path, length);
}

// make_name is link(2): the request's node is the folder, and its body names the file.
static uint16_t make_name(int32_t fd, const char *path, uint32_t length) {
    if (node_place(word64(0), 0, &other)) return WASI_EIO;
    return wasi_path_link(other.in->fd, 0, other.path, other.length, fd, path, length);
}

static uint32_t answer_remove(bool directory) {
    const char *name = name_at(0);
    if (name == 0) return LINUX_EINVAL;
    uint32_t error = node_place(header->node, name, &place);
    if (error) return error;
    error = linux_error((directory ? wasi_path_remove_directory : wasi_path_unlink_file)(place.in->fd, place.path, place.length));
    if (!error) node_gone(header->node, name);
    return error;
}

static uint32_t answer_rename(uint32_t head, uint32_t flags) {
    const char *name = name_at(head), *to = name == 0 ? 0 : name_at(head + length_of(name) + 1);
    uint64_t folder = header->node, to_folder = word64(0);
    if (to == 0 || flags != 0) return LINUX_EINVAL;
    uint32_t error = node_place(folder, name, &place);
    if (!error) error = node_place(to_folder, to, &other);
    if (!error) error = linux_error(wasi_path_rename(place.in->fd, place.path, place.length, other.in->fd, other.path, other.length));
    if (!error) node_moved(folder, name, to_folder, to);
    return error;
}

static uint32_t answer_target(void) {
    uint32_t error = node_place(header->node, 0, &place);
    if (error) return error;
    error = linux_error(wasi_path_readlink(place.in->fd, place.path, place.length, (char *)out, PATH_MAX - 1, &out_size));
    return error ? error : out_size >= PATH_MAX ? LINUX_EIO : 0;
}

// The session ----------------------------------------------------------------------------------------------------

static uint32_t answer_init(void) {
    for (uint32_t handle = 0; handle < MAX_HANDLES; handle++) close_handle(handle);
    uint32_t *fields = put(64);
    fields[0] = 7;
    fields[1] = 31;
    fields[2] = word32(8); // read ahead
    fields[3] = word32(12) & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_AUTO_INVAL_DATA | FUSE_PARALLEL_DIROPS);
    fields[5] = FUSE_MAX_DATA;
    fields[6] = 1; // ns: the granularity of times
    return 0;
}

// answer_space: WASI does not tell how much there is, so it is as much as anybody asks for.
static uint32_t answer_space(void) {
    uint64_t *fields = put(80);
    fields[0] = fields[1] = fields[2] = fields[3] = fields[4] = 1 << 28;
    fields[5] = 4096 | (uint64_t)NAME_MAX << 32; // the size of a block, and of names
    fields[6] = 4096;
    return 0;
}

static uint32_t answer_opened(uint32_t how) {
    uint32_t error = node_place(header->node, 0, &place);
    return error ? error : answer_open(word32(0), how);
}

static uint32_t answer(void) {
    int32_t fd = fd_of(word64(0));
    switch (header->opcode) {
    case FUSE_INIT: return answer_init();
    case FUSE_LOOKUP: return answer_entry(name_at(0));
    case FUSE_GETATTR: return answer_attributes(header->node);
    case FUSE_SETATTR: return answer_change();
    case FUSE_READLINK: return answer_target();
    case FUSE_SYMLINK: return make(0, make_link);
    case FUSE_MKNOD: return (word32(0) & S_IFMT) != S_IFREG ? LINUX_EPERM : make(16, make_file);
    case FUSE_MKDIR: return make(8, wasi_path_create_directory);
    case FUSE_LINK: return make(8, make_name);
    case FUSE_UNLINK: return answer_remove(false);
    case FUSE_RMDIR: return answer_remove(true);
    case FUSE_RENAME: return answer_rename(8, 0);
    case FUSE_RENAME2: return answer_rename(16, word32(8));
    case FUSE_OPEN: return answer_opened(0);
    case FUSE_OPENDIR: return answer_opened(WASI_O_DIRECTORY);
    case FUSE_CREATE: return answer_create();
    case FUSE_READ: return answer_read();
    case FUSE_WRITE: return answer_write();
    case FUSE_READDIR: return answer_list();
    case FUSE_RELEASE: case FUSE_RELEASEDIR: close_handle(word64(0)); return 0;
    case FUSE_FSYNC: return fd < 0 ? LINUX_EBADF : linux_error(wasi_fd_sync(fd));
    case FUSE_STATFS: return answer_space();
    case FUSE_FSYNCDIR: case FUSE_DESTROY: return 0;
    default: return LINUX_ENOSYS;
    }
}

uint32_t fuse_answer(const struct in_header *request, uint32_t size, struct out_header *reply) {
    header = request;
    have = size;
    out = (uint8_t *)(reply + 1);
    out_size = 0;
    switch (header->opcode) {
    case FUSE_FORGET: node_forget(header->node, word64(0)); return 0;
    case FUSE_BATCH_FORGET:
        for (uint32_t i = 0, at = 8; i < word32(0) && at + 16 <= have - sizeof *header; i++, at += 16) node_forget(word64(at), word64(at + 8));
        return 0;
    case FUSE_INTERRUPT: return 0;
    default: break;
    }
    uint32_t error = answer();
    if (error) out_size = 0;
    *reply = (struct out_header){.length = sizeof *reply + out_size, .error = -(int32_t)error, .unique = header->unique};
    return reply->length;
}
#endif
