package main

import "testing"

func TestSecretVariables(t *testing.T) {
	for pair, want := range map[[2]string]bool{
		{"SANDBOX_NAME", "dev"}: false, {"SANDBOX_URL", "https://host.test/a:b@c"}: false, {"SANDBOX_DATABASE", "postgres://me:pass@db.test/x"}: true, {"SANDBOX_PROXY", "http://:pass@proxy.test"}: true,
		{"SANDBOX_API_KEY", "x"}: true, {"sandbox_db_password", "x"}: true, {"SANDBOX_TOKEN_FILE", "/x"}: true, {"SANDBOX_TEMPLATE", "user@host"}: false,
	} {
		if got := isSecretVariable(pair[0], pair[1]); got != want {
			t.Errorf("%s=%s: %v", pair[0], pair[1], got)
		}
	}
}
