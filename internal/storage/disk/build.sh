#!/bin/sh
# Builds the empty file systems that new disks begin with -> template.blocks.zst, default.blocks.zst and provenance.json.
#
#   internal/storage/disk/build.sh [OUT]     OUT: where the results go (default: this directory)
#
# The same mke2fs gives the same bytes. Needs Debian's e2fsprogs, perl and zstd; not root.
set -eu

# The time of everything inside. Disks get identifiers of their own when they are made.
export E2FSPROGS_FAKE_TIME=1750000000
uuid=61676e74-766d-4000-8000-000000000001
hash_seed=61676e74-766d-4000-8000-000000000002

# doc.go says which features are in, and why. `none` drops what mke2fs would add by itself.
features=none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file
features=$features,huge_file,dir_nlink,extra_isize,uninit_bg

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-$here}"
out=$(cd "${1:-$here}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C TZ=UTC PATH="$PATH:/usr/sbin:/sbin"

die() {
	echo "build.sh: $*" >&2
	exit 1
}

sha256() {
	sha256sum "$1" | cut -d' ' -f1
}

for tool in mke2fs e2fsck perl zstd; do
	command -v $tool >/dev/null || die "$tool is missing; on Debian: apt install e2fsprogs perl zstd"
done

# Not the machine's own settings.
cat >"$work/mke2fs.conf" <<END
[defaults]
	default_mntopts = acl,user_xattr
	enable_periodic_fsck = 0
[fs_types]
	ext4 = {
		inode_size = 256
	}
	small = {
		inode_size = 256
	}
END

# In blocks of 4 KiB; 8192 inodes a group; a journal of 16 MiB; room for the descriptors of 1 TiB; nothing reserved for root; tables written now
# and not by the first kernel that mounts it. Of its blocks few have contents: each of those with its number, as 8 bytes of little endian before it.
#
#   build NAME SIZE BYTES_AN_INODE
build() {
	MKE2FS_CONFIG=$work/mke2fs.conf mke2fs -q -F -t ext4 -b 4096 -g 32768 -I 256 -i "$3" -G 16 -J size=16 -m 0 \
		-O "$features" -e remount-ro -L agentvm -U $uuid \
		-E hash_seed=$hash_seed,resize=268435456,lazy_itable_init=0,lazy_journal_init=0,nodiscard,root_owner=0:0 \
		"$work/$1.ext4" "$2" >/dev/null
	e2fsck -fn "$work/$1.ext4" >"$work/check" 2>&1 || { cat "$work/check" >&2; die "mke2fs made a file system that e2fsck refuses"; }
	perl -e 'open(my $f, "<:raw", $ARGV[0]) or die; binmode STDOUT; my $zeros = "\0" x 4096;
		for (my $at = 0; defined($at = sysseek($f, $at, 3));) { # SEEK_DATA, and 4 is SEEK_HOLE
			my $end = sysseek($f, $at, 4);
			my $n = int($at / 4096);
			for (sysseek($f, $n * 4096, 0); $n * 4096 < $end && sysread($f, my $b, 4096); $n++) { print pack("Q<", $n), $b if $b ne $zeros }
			$at = $end;
		}' "$work/$1.ext4" >"$work/$1.blocks"
	zstd -q -19 --no-check --single-thread "$work/$1.blocks" -o "$out/$1.blocks.zst" -f
}

# image prints what provenance.json says of a result.
image() {
	cat <<END
{
    "raw_sha256": "$(sha256 "$work/$1.blocks")",
    "raw_bytes": $(stat -c %s "$work/$1.blocks"),
    "zstd_sha256": "$(sha256 "$out/$1.blocks.zst")",
    "zstd_bytes": $(stat -c %s "$out/$1.blocks.zst")
  }
END
}

build template 64M 8192  # half a group; one inode for 16 KiB once it has grown
build default 10G 16384  # disk.DefaultSize

cat >"$out/provenance.json" <<END
{
  "artifacts": ["template.blocks.zst", "default.blocks.zst"],
  "licence": "none: empty file systems",
  "command": "internal/storage/disk/build.sh",
  "inputs": {
    "build.sh": "$(sha256 "$here/build.sh")"
  },
  "image": $(image template),
  "default": $(image default),
  "toolchain": {
    "mke2fs": "$(mke2fs -V 2>&1 | sed -n 's/^mke2fs \([^ ]*\).*/\1/p')",
    "zstd": "$(zstd --version | sed -n 's/.*v\([0-9.]*\),.*/\1/p')"
  }
}
END
