// Package imagebuild makes images from Dockerfiles, without a daemon and without root (docs/guide/build.md).
//
// Each instruction that changes files makes a layer: COPY and ADD on this host, from a tree that is never unpacked here; RUN in a VM that boots
// what the layers before it make together, from which the changes come as a layer. A step is known by a key, the digest of the step before and of
// all that it depends on itself, by which the store finds its layer again.
//
//	Dockerfile ─► stages ─► state: configuration, layers, key ─► images.Store.Compose
package imagebuild
