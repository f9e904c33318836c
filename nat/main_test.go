package nat

import (
	"testing"

	"agentvm/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
