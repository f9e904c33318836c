// Command fetch sends a request and prints the answer's status, the field X-Echo and the body: fetch URL [HOST [FIELD: VALUE]].
// fetch download:URL prints how long a download takes, and fetch requests:URL how long 100 requests take, one after another, both after a first
// request, which is not counted.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	url, times := os.Args[1], 0
	if rest, found := strings.CutPrefix(url, "download:"); found {
		url, times = rest, 1
	} else if rest, found := strings.CutPrefix(url, "requests:"); found {
		url, times = rest, 100
	}
	if times > 0 {
		began := time.Now()
		for i := range times + 1 {
			if i == 1 {
				began = time.Now()
			}
			if err := discard(url); err != nil {
				fmt.Println(err)
				return
			}
		}
		fmt.Println(time.Since(began))
		return
	}
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if len(os.Args) > 2 {
		r.Host = os.Args[2]
	}
	if len(os.Args) > 3 {
		field, value, _ := strings.Cut(os.Args[3], ": ")
		r.Header.Set(field, value)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	fmt.Println(answer.StatusCode, answer.Header.Get("X-Echo"), string(body), err)
}

func discard(url string) error {
	answer, err := http.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}
