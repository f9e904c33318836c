// Package statestore keeps snapshots of VMs in an object store: deduplicated, compressed, verified, and with a key encrypted and authenticated.
// All methods may be called from several goroutines and processes.
//
// What is read is the input of anyone who can write to the store. Without a key nothing of it is trusted: it is verified as an imported
// snapshot is, and the snapshot is not the local store's own. With a key everything was written by a holder of that key; others can only
// bring back an older snapshot of the same name.
//
// # Parts
//
//   - A piece is the own pages of 64 KiB of memory or disk (snapshot/outline.go). Its SHA-256, with a key an HMAC, decides whether the store
//     has it already.
//   - A pack is an object with pieces of up to 8 MiB in one zstd frame. Requests cost more than bytes, so readers fetch whole packs, and a
//     writer repeats pieces whose pack it would use by less than a quarter.
//   - A manifest has the outlines of a snapshot and its base, the places of all pieces, and all packs. It is written last, so a name has a
//     whole snapshot or none.
//   - An index is a manifest that only tells writers what exists. Losing one costs space, never data.
//
// A pack is verified against its name before it is unpacked, and then the file against its tables unless a key vouches for them. A base is
// fetched only where its ID is missing. Memory is fetched before the VM starts, not when it is touched: a fault on a mapping would have to be
// served by another process (userfaultfd stops the Go scheduler's own threads), and system calls into such memory would fail in confined
// processes.
//
// # Why own clients of the stores?
//
// Bytes of a stripped linux/amd64 program, beyond one with net/http and the decoders: gocloud.dev/blob with files 6.8 MB, with S3 15.8 MB, with
// Google 28.5 MB; minio-go 1.7 MB; Amazon's signer alone 0.1 MB; age 0.4 MB. agentvm grew by 0.9 MB for all three stores and age. Amazon's
// protocol also serves Google's XML interface.
//
// # Garbage
//
// See Store.Prune.
package statestore
