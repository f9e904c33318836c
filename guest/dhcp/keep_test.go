package dhcp

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestKeep follows a day of leases of 1000 minutes, renewed after 500, rebound after 800.
func TestKeep(t *testing.T) {
	type attempt struct {
		Minute int
		Stage  Stage
	}
	failed, refused := errors.New("no answer"), errNak
	for _, tt := range []struct {
		name    string
		results []error // of the attempts, then success
		minutes int
		want    []attempt
	}{
		{"renewed", nil, 1600, []attempt{{500, Renewing}, {1000, Renewing}, {1500, Renewing}}},
		{"renewed late", []error{failed, failed}, 800, []attempt{{500, Renewing}, {650, Renewing}, {725, Renewing}}},
		{
			"rebound", []error{failed, failed, failed, failed, failed, failed, failed, failed, failed, failed}, 850,
			[]attempt{
				{500, Renewing}, {650, Renewing}, {725, Renewing}, {762, Renewing}, {781, Renewing}, {790, Renewing}, {795, Renewing},
				{797, Renewing}, {798, Renewing}, {799, Renewing}, {800, Rebinding},
			},
		},
		{"refused", []error{refused, refused}, 520, []attempt{{500, Renewing}, {500, Expired}, {501, Expired}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), time.Duration(tt.minutes)*time.Minute)
				defer stop()
				begin := time.Now()
				lease := Lease{Duration: 1000 * time.Minute, Renew: 500 * time.Minute, Rebind: 800 * time.Minute}
				var got []attempt
				Keep(ctx, lease, func(l Lease, stage Stage) (Lease, error) {
					got = append(got, attempt{int(time.Since(begin).Minutes()), stage})
					if len(got) <= len(tt.results) {
						return Lease{}, tt.results[len(got)-1]
					}
					return l, nil
				})
				if len(got) > len(tt.want) { // what follows is the next lease's
					got = got[:len(tt.want)]
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		})
	}
}

func TestKeepForever(t *testing.T) {
	Keep(t.Context(), Lease{Duration: Forever}, func(l Lease, _ Stage) (Lease, error) {
		t.Error("a lease that does not end was extended")
		return l, nil
	})
}

// TestKeepExpired: long after the end attempts go on, once a minute.
func TestKeepExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 24*time.Hour)
		defer stop()
		expired := 0
		Keep(ctx, Lease{Duration: time.Hour, Renew: 30 * time.Minute, Rebind: 50 * time.Minute}, func(_ Lease, stage Stage) (Lease, error) {
			if stage == Expired {
				expired++
			}
			return Lease{}, errors.New("no answer")
		})
		if expired < 23*59 || expired > 23*60 {
			t.Errorf("%d attempts in 23 hours", expired)
		}
	})
}
