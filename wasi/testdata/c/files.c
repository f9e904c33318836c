// Exercises files, directories and errors through wasi-libc. Exits with the line of the first check that fails.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define CHECK(cond)                                                                                                    \
	do {                                                                                                               \
		if (!(cond)) {                                                                                                 \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #cond, strerror(errno));                                    \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)
#define FAILS(call, number) CHECK((call) == -1 && errno == (number))

static void files(void) {
	char buf[16];
	int fd = open("a", O_CREAT | O_EXCL | O_RDWR, 0644);
	CHECK(fd >= 3);
	CHECK(write(fd, "hello world", 11) == 11);
	CHECK(lseek(fd, 6, SEEK_SET) == 6);
	CHECK(read(fd, buf, sizeof buf) == 5 && memcmp(buf, "world", 5) == 0);
	CHECK(pread(fd, buf, 5, 0) == 5 && memcmp(buf, "hello", 5) == 0);
	CHECK(pwrite(fd, "H", 1, 0) == 1);
	struct iovec v[2] = {{buf, 2}, {buf + 2, 4}};
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, v, 2) == 6 && memcmp(buf, "Hello ", 6) == 0);
	CHECK(ftruncate(fd, 4) == 0);
	CHECK(posix_fallocate(fd, 0, 8) == 0);
	struct stat st;
	CHECK(fstat(fd, &st) == 0 && st.st_size == 8 && S_ISREG(st.st_mode) && st.st_nlink == 1 && st.st_ino != 0);
	struct timespec times[2] = {{1, 2}, {3, 4}};
	CHECK(futimens(fd, times) == 0 && fstat(fd, &st) == 0);
	CHECK(st.st_atim.tv_sec == 1 && st.st_atim.tv_nsec == 2 && st.st_mtim.tv_sec == 3 && st.st_mtim.tv_nsec == 4);
	CHECK(fsync(fd) == 0 && fdatasync(fd) == 0);
	CHECK((fcntl(fd, F_GETFL) & O_APPEND) == 0 && fcntl(fd, F_SETFL, O_APPEND) == 0);
	CHECK((fcntl(fd, F_GETFL) & O_APPEND) != 0 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, "end", 3) == 3);
	CHECK(lseek(fd, 0, SEEK_END) == 11);
	CHECK(close(fd) == 0);
	FAILS(close(fd), EBADF);
	fd = open("a", O_RDONLY);
	FAILS(write(fd, "x", 1), EBADF);
	CHECK(close(fd) == 0);
	FAILS(open("a", O_CREAT | O_EXCL | O_RDWR, 0644), EEXIST);
	FAILS(open("none", O_RDONLY), ENOENT);
	FAILS(open("a/b", O_RDONLY), ENOTDIR);
	FAILS(open("a", O_RDONLY | O_DIRECTORY), ENOTDIR);
	CHECK(link("a", "b") == 0 && stat("b", &st) == 0 && st.st_nlink == 2);
	CHECK(rename("b", "c") == 0 && unlink("c") == 0);
	FAILS(unlink("c"), ENOENT);
	CHECK(symlink("a", "l") == 0 && readlink("l", buf, sizeof buf) == 1 && buf[0] == 'a');
	CHECK(lstat("l", &st) == 0 && S_ISLNK(st.st_mode) && stat("l", &st) == 0 && S_ISREG(st.st_mode));
	FAILS(open("l", O_RDONLY | O_NOFOLLOW), ELOOP);
	CHECK(unlink("l") == 0);
}

static void directories(void) {
	CHECK(mkdir("d", 0755) == 0);
	FAILS(mkdir("d", 0755), EEXIST);
	FAILS(open("d", O_RDWR), EISDIR);
	FAILS(rmdir("a"), ENOTDIR);
	FAILS(unlink("d"), EISDIR);
	char name[32];
	for (int i = 0; i < 500; i++) {
		snprintf(name, sizeof name, "d/file-%d", i);
		int fd = open(name, O_CREAT | O_WRONLY, 0644);
		CHECK(fd >= 0 && close(fd) == 0);
	}
	FAILS(rmdir("d"), ENOTEMPTY);
	DIR *dir = opendir("d");
	CHECK(dir != NULL);
	int count = 0;
	for (struct dirent *e; (e = readdir(dir)) != NULL; count++)
		CHECK(e->d_name[0] == '.' ? e->d_type == DT_DIR : e->d_type == DT_REG && e->d_ino != 0);
	CHECK(count == 502);
	rewinddir(dir);
	CHECK(readdir(dir) != NULL && closedir(dir) == 0);
	for (int i = 0; i < 500; i++) {
		snprintf(name, sizeof name, "d/file-%d", i);
		CHECK(unlink(name) == 0);
	}
	CHECK(rmdir("d") == 0);
	FAILS(opendir("d") ? 0 : -1, ENOENT);
}

static void streams(char **argv) {
	CHECK(strcmp(argv[1], "an arg") == 0 && strcmp(getenv("KEY"), "value=x") == 0 && getenv("HOME") == NULL);
	FAILS(lseek(0, 0, SEEK_CUR), ESPIPE);
	CHECK(!isatty(0) && !isatty(1));
	struct pollfd p[2] = {{0, POLLIN, 0}, {1, POLLOUT, 0}};
	CHECK(poll(p, 2, 1000) >= 1 && (p[1].revents & POLLOUT));
	char buf[32];
	CHECK(fgets(buf, sizeof buf, stdin) != NULL && strcmp(buf, "line\n") == 0);
	CHECK(fgets(buf, sizeof buf, stdin) == NULL && feof(stdin));
}

static void clocks(void) {
	struct timespec a, b, d = {0, 5000000};
	CHECK(clock_gettime(CLOCK_MONOTONIC, &a) == 0 && nanosleep(&d, NULL) == 0 && clock_gettime(CLOCK_MONOTONIC, &b) == 0);
	CHECK((b.tv_sec - a.tv_sec) * 1000000000LL + b.tv_nsec - a.tv_nsec >= 5000000);
	CHECK(time(NULL) > 1600000000 && clock_getres(CLOCK_REALTIME, &a) == 0 && a.tv_nsec > 0);
	unsigned char r[100] = {0};
	int set = 0;
	CHECK(getentropy(r, sizeof r) == 0);
	for (size_t i = 0; i < sizeof r; i++)
		set += r[i] != 0;
	CHECK(set > 50);
}

int main(int argc, char **argv) {
	CHECK(argc == 2);
	files();
	directories();
	streams(argv);
	clocks();
	puts("done");
	return 7;
}
