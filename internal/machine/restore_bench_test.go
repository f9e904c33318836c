package machine_test

import (
	"testing"

	"agentvm/internal/machine"
	"agentvm/wasi"
)

var idleGuest = machine.Config{Memory: 256 << 20}

// withConsole gives the configuration a console without a reader.
func withConsole(cfg machine.Config) machine.Config {
	cfg.Console = wasi.NewStream(1 << 16)
	return cfg
}

// BenchmarkCapture saves a guest that has started one process since its image.
func BenchmarkCapture(b *testing.B) {
	w := bootWorker(b, idleGuest, "")
	w.ask("run")
	w.capture()
	var extents int
	for b.Loop() {
		b.StopTimer()
		w.ask("run")
		b.StartTimer()
		i, err := w.Capture(machine.ExtentsForMany)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		extents = len(i.Extents())
		if err := i.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(extents), "extents")
}

// BenchmarkCaptureAll saves a guest that has just booted.
func BenchmarkCaptureAll(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		w := bootWorker(b, idleGuest, "")
		b.StartTimer()
		i, err := w.Capture(machine.ExtentsForMany)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := i.Close(); err != nil {
			b.Fatal(err)
		}
		w.close()
		b.StartTimer()
	}
}

// BenchmarkRestore makes machines from an image, and runs each until it has answered once.
func BenchmarkRestore(b *testing.B) {
	w := bootWorker(b, idleGuest, "")
	w.ask("run")
	w.capture()
	w.ask("run")
	image := w.capture()
	b.Run("make", func(b *testing.B) {
		for b.Loop() {
			m, err := testProgram(b).Restore(b.Context(), withConsole(idleGuest), image)
			if err != nil {
				b.Fatal(err)
			}
			if err := m.Close(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(image.Extents())), "extents")
	})
	b.Run("answer", func(b *testing.B) {
		for b.Loop() {
			c := restoreWorker(b, idleGuest, image)
			c.ask("time")
			c.close()
		}
	})
}
