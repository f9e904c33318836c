#!/bin/sh
# Builds the empty file system that every new disk begins with -> template.ext4.zst and provenance.json.
#
#   internal/storage/disk/build.sh [OUT]     OUT: where the two results go (default: this directory)
#
# The same mke2fs gives the same bytes. Needs Debian's e2fsprogs and zstd; not root.
set -eu

# The time of everything inside. Disks get identifiers of their own when they are made.
export E2FSPROGS_FAKE_TIME=1750000000
uuid=61676e74-766d-4000-8000-000000000001
hash_seed=61676e74-766d-4000-8000-000000000002
kept=$((20 << 20))

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

for tool in mke2fs e2fsck zstd; do
	command -v $tool >/dev/null || die "$tool is missing; on Debian: apt install e2fsprogs zstd"
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

# 64 MiB in blocks of 4 KiB, half a group; 8192 inodes a group (one for 16 KiB once it has grown); a journal of 16 MiB; room for
# the descriptors of 1 TiB; nothing reserved for root; tables written now and not by the first kernel that mounts it.
MKE2FS_CONFIG=$work/mke2fs.conf mke2fs -q -F -t ext4 -b 4096 -g 32768 -I 256 -i 8192 -G 16 -J size=16 -m 0 \
	-O "$features" -e remount-ro -L agentvm -U $uuid \
	-E hash_seed=$hash_seed,resize=268435456,lazy_itable_init=0,lazy_journal_init=0,nodiscard,root_owner=0:0 \
	"$work/template.ext4" 64M >/dev/null
e2fsck -fn "$work/template.ext4" >"$work/check" 2>&1 || { cat "$work/check" >&2; die "mke2fs made a file system that e2fsck refuses"; }

# Nothing is in its last 44 MiB: leaving them out spares every new disk to unpack them.
tail -c +$((kept + 1)) "$work/template.ext4" | cmp -s -n $(((64 << 20) - kept)) - /dev/zero || die "the template has something behind $kept bytes"
truncate -s $kept "$work/template.ext4"
zstd -q -19 --no-check --single-thread "$work/template.ext4" -o "$out/template.ext4.zst" -f

cat >"$out/provenance.json" <<END
{
  "artifact": "template.ext4.zst",
  "licence": "none: an empty file system",
  "command": "internal/storage/disk/build.sh",
  "inputs": {
    "build.sh": "$(sha256 "$here/build.sh")"
  },
  "image": {
    "raw_sha256": "$(sha256 "$work/template.ext4")",
    "raw_bytes": $(stat -c %s "$work/template.ext4"),
    "zstd_sha256": "$(sha256 "$out/template.ext4.zst")",
    "zstd_bytes": $(stat -c %s "$out/template.ext4.zst")
  },
  "toolchain": {
    "mke2fs": "$(mke2fs -V 2>&1 | sed -n 's/^mke2fs \([^ ]*\).*/\1/p')",
    "zstd": "$(zstd --version | sed -n 's/.*v\([0-9.]*\),.*/\1/p')"
  }
}
END
