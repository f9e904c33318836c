package nat

import (
	"errors"
	"testing"
)

func TestParseForwards(t *testing.T) {
	for _, c := range []struct {
		text        string
		count       int
		first, last string
	}{
		{"8080:80", 1, "8080:80/tcp", "8080:80/tcp"},
		{"8000-8009:9000-9009", 10, "8000:9000/tcp", "8009:9009/tcp"},
		{"0.0.0.0:8000-8001:80-81/udp", 2, "0.0.0.0:8000:80/udp", "0.0.0.0:8001:81/udp"},
		{"1.2.3.4:8000-8001:localhost:80-81", 2, "1.2.3.4:8000:localhost:80/tcp", "1.2.3.4:8001:localhost:81/tcp"},
		{"[::1]:8000-8001:80-81", 2, "[::1]:8000:80/tcp", "[::1]:8001:81/tcp"},
	} {
		list, err := ParseForwards(c.text)
		if err != nil || len(list) != c.count || list[0].String() != c.first || list[len(list)-1].String() != c.last {
			t.Errorf("%s: %v, %v", c.text, list, err)
		}
	}
	for text, column := range map[string]int{
		"8000-8001:80": 1, "8001-8000:81-80": 1, "8000-8001:0-1": 11, "1-60000:1-60000": 1, "x-y:1-2": 1, "8000-8001:80-81/sctp": 9, "1.2.3:8000-8001:80-81": 1, "8000-8001": 10,
	} {
		_, err := ParseForwards(text)
		var wrong *ForwardError
		if !errors.As(err, &wrong) || wrong.Column != column && wrong.Column != column+1 {
			t.Errorf("%s: %v, want column %d", text, err, column)
		}
	}
}
