package standalone

import (
	"os"
	"testing"

	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Check(m.Run())) }
