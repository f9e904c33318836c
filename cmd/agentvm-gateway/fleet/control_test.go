package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"agentvm/internal/api/e2b/wire"
)

// TestErrors: what clients learn of each kind of error, and that they learn nothing of the cluster's.
func TestErrors(t *testing.T) {
	g := &Gateway{config: Config{Logger: slog.New(slog.DiscardHandler)}}
	for err, want := range map[error]int{
		wire.Fail(409, "a secret of the client"): 409, fmt.Errorf("in: %w", wire.Fail(404, "a secret of the client")): 404, &http.MaxBytesError{Limit: 5}: 413,
		fmt.Errorf("secret: %w", context.Canceled): 499, fmt.Errorf("secret: %w", context.DeadlineExceeded): 503, errors.New("secret"): 503, fs.ErrNotExist: 503,
		apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "secret", errors.New("secret")): 500,
	} {
		w := httptest.NewRecorder()
		g.writeError(w, err)
		if w.Code != want || (w.Header().Get("Retry-After") != "") != (want == 503) || strings.Contains(w.Body.String(), "secret") && want != 409 && want != 404 {
			t.Errorf("%v: %d %s, want %d", err, w.Code, w.Body, want)
		}
	}
}
