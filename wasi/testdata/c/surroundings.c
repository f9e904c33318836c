// Checks what a program is given: arguments, environment, streams, and a directory as its working directory. Copies
// standard input to standard output and exits with -1.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(cond)                                                                                                    \
	do {                                                                                                               \
		if (!(cond)) {                                                                                                 \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #cond, strerror(errno));                                    \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

static void sockets(void) {
	CHECK(shutdown(STDOUT_FILENO, SHUT_RD) == -1 && errno == ENOTSOCK);
	CHECK(shutdown(99, SHUT_RD) == -1 && errno == EBADF);
}

// The inode of a directory's entry is the one that the file itself says.
static void inodes(void) {
	CHECK(mkdir("sub", 0755) == 0);
	CHECK(close(open("sub/a", O_CREAT | O_WRONLY, 0644)) == 0 && close(open("sub/b", O_CREAT | O_WRONLY, 0644)) == 0);
	int fd = open("sub", O_RDONLY | O_DIRECTORY);
	DIR *dir = fdopendir(fd);
	CHECK(dir != NULL);
	ino_t last = 0;
	int count = 0;
	for (struct dirent *e; (e = readdir(dir)) != NULL;) {
		struct stat st;
		if (e->d_name[0] == '.')
			continue;
		CHECK(fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ino == e->d_ino && st.st_ino != last);
		last = st.st_ino;
		count++;
	}
	CHECK(count == 2 && closedir(dir) == 0);
}

static void appending(void) {
	int fd = open("log", O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0644);
	CHECK(fd >= 3 && !isatty(fd) && write(fd, "ab", 2) == 2);
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && write(fd, "cd", 2) == 2 && lseek(fd, 0, SEEK_CUR) == 4);
	CHECK(pwrite(fd, "xyz", 3, 0) == 3 && lseek(fd, 0, SEEK_CUR) == 4 && lseek(fd, 0, SEEK_END) == 7);
	CHECK(close(fd) == 0);
}

// The first buffer reads ahead; the position is that of what the program took, after a flush.
static void buffering(void) {
	char buf[4];
	FILE *f = fopen("log", "r");
	CHECK(f != NULL && fread(buf, 1, 4, f) == 4 && memcmp(buf, "abcd", 4) == 0);
	CHECK(fflush(f) == 0 && lseek(fileno(f), 0, SEEK_CUR) == 4 && fclose(f) == 0);
}

int main(int argc, char **argv) {
	CHECK(argc == 4 && strcmp(argv[1], "--dir") == 0 && strcmp(argv[2], "ünï \"q\"\n") == 0 && argv[3][0] == 0);
	CHECK(strcmp(getenv("ÄÖ"), "a=b\nc") == 0 && strcmp(getenv("EMPTY"), "") == 0);
	sockets();
	inodes();
	appending();
	buffering();
	char buf[100];
	ssize_t n;
	while ((n = read(STDIN_FILENO, buf, sizeof buf)) > 0) {
		CHECK(write(STDOUT_FILENO, buf, n) == n);
		CHECK(write(STDERR_FILENO, "|", 1) == 1);
	}
	CHECK(n == 0);
	exit(-1);
}
