package images

import "io"

// Stage is what a pull, a push or a save is doing.
type Stage string

const (
	// StageDownload counts bytes of the source archive.
	StageDownload Stage = "download"
	// StageBuild counts bytes of the source archive that are in the root disk.
	StageBuild Stage = "build"
	// StagePack counts bytes of the layers that are written or compressed for others.
	StagePack Stage = "pack"
	// StageUpload counts bytes that a registry has taken.
	StageUpload Stage = "upload"
)

// Progress is how far a stage has come.
type Progress struct {
	Stage Stage
	// Name is the name of the image.
	Name string
	// Done and Total are in bytes. Total is 0 while it is not known. A stage ends with Done equal to Total; a
	// download that has to start again goes back to a smaller Done.
	Done, Total int64
}

// ProgressFunc receives progress. It is called often, and never by two goroutines at once, so it must return quickly.
type ProgressFunc func(Progress)

// report calls f unless it is nil.
func (f ProgressFunc) report(p Progress) {
	if f != nil {
		f(p)
	}
}

// progressReader reports how much was read through it.
type progressReader struct {
	io.Reader
	at     *Progress // shared by the readers of one stage
	report ProgressFunc
}

func (r *progressReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.at.Done += int64(n)
	r.report.report(*r.at)
	return n, err
}
