// What the guest knows of the runtime's directories: each file that it has looked up and not forgotten, by its folder and name. Numbers of
// nodes come from the guest, so any number may be wrong; whatever place comes out, WASI holds it in the directory.
#ifdef AGENTVM_STANDALONE
#define STANDALONE_ITSELF
#include "standalone_share.h"

enum { NODES_A_PAGE = 234, MAX_NODES = 1100 * NODES_A_PAGE, BUCKETS = 1 << 16 };
enum { LINUX_EPERM = 1, LINUX_ENAMETOOLONG = 36, LINUX_ESTALE = 116 };

static struct node {
    uint32_t folder; // 0: its name is gone, or the node is free
    uint32_t next;   // in its bucket, or among the free ones
    uint64_t lookups, ino;
    char name[NAME_MAX + 1];
} *pages[MAX_NODES / NODES_A_PAGE];
static uint32_t used = NODE_FIRST + MAX_DIRS, free_nodes, bucket[BUCKETS];

_Static_assert(NODES_A_PAGE * sizeof(struct node) <= 65536, "new_page");

struct directory directories[MAX_DIRS];
static uint32_t directory_count;

uint32_t find_directories(void) {
    enum { FD_FIRST = 3, FD_END = 128 };
    for (int32_t fd = FD_FIRST; fd < FD_END && directory_count < MAX_DIRS; fd++) {
        struct directory *to = &directories[directory_count];
        struct wasi_prestat stat;
        struct wasi_fdstat rights;
        if (wasi_fd_prestat_get(fd, &stat) != WASI_ESUCCESS || stat.tag != 0 || stat.length >= PATH_MAX) continue;
        if (wasi_fd_prestat_dir_name(fd, to->name, stat.length) != WASI_ESUCCESS || wasi_fd_fdstat_get(fd, &rights) != WASI_ESUCCESS) continue;
        to->name[stat.length] = 0;
        to->fd = fd;
        to->rights = rights.inheriting;
        directory_count++;
    }
    return directory_count;
}

static struct node *node_at(uint64_t node) { return &pages[node / NODES_A_PAGE][node % NODES_A_PAGE]; }
static bool is_node(uint64_t node) { return node >= NODE_FIRST + MAX_DIRS && node < used; }

static bool equal(const char *a, const char *b) {
    while (*a != 0 && *a == *b) a++, b++;
    return *a == *b;
}

static uint32_t *bucket_of(uint32_t folder, const char *name) {
    uint32_t hash = folder * 2654435761u;
    for (; *name != 0; name++) hash = (hash ^ (uint8_t)*name) * 16777619u;
    return &bucket[(hash ^ hash >> 16) % BUCKETS];
}

static bool prepend(struct place *place, const char *name) {
    uint32_t length = 0, slash = place->length > 0;
    while (name[length] != 0) length++;
    if (place->length + length + slash > PATH_MAX) return false;
    place->path -= length + slash;
    __builtin_memcpy((char *)place->path, name, length);
    if (slash) ((char *)place->path)[length] = '/';
    place->length += length + slash;
    return true;
}

uint32_t node_place(uint64_t node, const char *name, struct place *place) {
    place->path = place->buffer + PATH_MAX;
    place->length = 0;
    if (name != 0 && !prepend(place, name)) return LINUX_ENAMETOOLONG;
    for (; is_node(node); node = node_at(node)->folder)
        if (!prepend(place, node_at(node)->name)) return LINUX_ENAMETOOLONG;
    if (node == NODE_ROOT) return LINUX_EPERM;
    if (node < NODE_FIRST || node - NODE_FIRST >= directory_count) return LINUX_ESTALE;
    place->in = &directories[node - NODE_FIRST];
    if (place->length == 0) prepend(place, ".");
    return 0;
}

// unlink_name takes a node out of its bucket.
static void unlink_name(uint32_t node) {
    if (node_at(node)->folder == 0) return;
    uint32_t *at = bucket_of(node_at(node)->folder, node_at(node)->name);
    while (*at != 0 && *at != node) at = &node_at(*at)->next;
    if (*at == node) *at = node_at(node)->next;
    node_at(node)->folder = 0;
}

static void link_name(uint32_t node, uint64_t folder, const char *name) {
    uint32_t length = 0, *at = bucket_of((uint32_t)folder, name);
    for (; name[length] != 0 && length < NAME_MAX; length++) node_at(node)->name[length] = name[length];
    node_at(node)->name[length] = 0;
    node_at(node)->folder = (uint32_t)folder;
    node_at(node)->next = *at;
    *at = node;
}

static uint32_t find(uint64_t folder, const char *name) {
    for (uint32_t node = *bucket_of((uint32_t)folder, name); node != 0; node = node_at(node)->next)
        if (node_at(node)->folder == folder && equal(node_at(node)->name, name)) return node;
    return 0;
}

static uint32_t make(void) {
    uint32_t node = free_nodes;
    if (node != 0) {
        free_nodes = node_at(node)->next;
    } else {
        struct node **page = &pages[used / NODES_A_PAGE];
        if (used == MAX_NODES || (*page == 0 && (*page = new_page()) == 0)) return 0;
        node = used++;
    }
    node_at(node)->folder = 0;
    node_at(node)->lookups = 0;
    return node;
}

uint32_t node_enter(uint64_t folder, const char *name, uint64_t ino) {
    uint32_t node = find(folder, name);
    if (node != 0 && node_at(node)->ino != ino) {
        unlink_name(node);
        node = 0;
    }
    if (node == 0) {
        if ((node = make()) == 0) return 0;
        node_at(node)->ino = ino;
        link_name(node, folder, name);
    }
    node_at(node)->lookups++;
    return node;
}

void node_forget(uint64_t node, uint64_t times) {
    if (!is_node(node) || node_at(node)->lookups == 0) return;
    node_at(node)->lookups -= times < node_at(node)->lookups ? times : node_at(node)->lookups;
    if (node_at(node)->lookups > 0) return;
    unlink_name((uint32_t)node);
    node_at(node)->next = free_nodes;
    free_nodes = (uint32_t)node;
}

void node_gone(uint64_t folder, const char *name) {
    uint32_t node = find(folder, name);
    if (node != 0) unlink_name(node);
}

void node_moved(uint64_t folder, const char *name, uint64_t to_folder, const char *to_name) {
    uint32_t node = find(folder, name);
    if (folder == to_folder && equal(name, to_name)) return;
    node_gone(to_folder, to_name);
    if (node == 0) return;
    unlink_name(node);
    link_name(node, to_folder, to_name);
}
#endif
