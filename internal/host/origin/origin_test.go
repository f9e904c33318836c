package origin

import (
	"errors"
	"net/http"
	"testing"
)

func TestOf(t *testing.T) {
	const own = "http://127.0.0.1:8080"
	foreign, wrong := Request{Foreign: true}, Request{Foreign: true, Elsewhere: true}
	for _, test := range []struct {
		name    string
		origins []string
		site    string
		mode    string
		want    Request
		err     error
	}{
		{"typed in", nil, "none", "navigate", Request{}, nil},
		{"no browser", nil, "", "", Request{}, nil},
		{"own page", []string{own}, "same-origin", "cors", Request{}, nil},
		{"capitals", []string{"HTTP://127.0.0.1:8080"}, "", "", wrong, ErrMalformed},
		{"link elsewhere", nil, "cross-site", "navigate", Request{Elsewhere: true}, nil},
		{"image elsewhere", nil, "cross-site", "no-cors", wrong, nil},
		{"another port's page", nil, "same-site", "no-cors", wrong, nil},
		{"a site of a later standard", nil, "same-party", "no-cors", wrong, nil},
		{"led here and back", []string{own}, "cross-site", "navigate", Request{Elsewhere: true}, nil},
		{"fetch elsewhere", []string{"https://example.com"}, "", "", foreign, nil},
		{"another port", []string{"http://127.0.0.1:8081"}, "", "", foreign, nil},
		{"another name", []string{"http://localhost:8080"}, "", "", foreign, nil},
		{"https", []string{"https://127.0.0.1:8080"}, "", "", foreign, nil},
		{"opaque", []string{"null"}, "", "", Request{Foreign: true, Opaque: true}, nil},
		{"opaque elsewhere", []string{"null"}, "cross-site", "", Request{Foreign: true, Elsewhere: true, Opaque: true}, nil},
		{"own form without referrer", []string{"null"}, "same-origin", "navigate", Request{Opaque: true}, nil},
		{"two", []string{own, own}, "", "", wrong, ErrMalformed},
		{"empty", []string{""}, "", "", wrong, ErrMalformed},
		{"path", []string{own + "/"}, "", "", wrong, ErrMalformed},
		{"list", []string{own + " https://example.com"}, "", "", wrong, ErrMalformed},
		{"user", []string{"http://user@127.0.0.1:8080"}, "", "", wrong, ErrMalformed},
		{"nonsense", []string{"x"}, "", "", wrong, ErrMalformed},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := http.Header{"Origin": test.origins}
			if test.site != "" {
				h.Set("Sec-Fetch-Site", test.site)
			}
			if test.mode != "" {
				h.Set("Sec-Fetch-Mode", test.mode)
			}
			if got, err := Of(h, own); got != test.want || !errors.Is(err, test.err) {
				t.Errorf("%+v, %v; want %+v, %v", got, err, test.want, test.err)
			}
		})
	}
}
