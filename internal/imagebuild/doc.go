// Package imagebuild makes images from Dockerfiles, without a daemon and without root (docs/guide/build.md).
//
// Each instruction that changes files makes a layer: COPY and ADD on this host, from a tree that is never unpacked here; RUN in a VM that boots
// what the layers before it make together, from which the changes come as a layer. The key of a step is the digest of the step before and of
// all on which the step itself depends; by it the store finds the step's layer again.
//
//	Dockerfile ─► stages ─► state: configuration, layers, key ─► images.Store.Compose
package imagebuild
