package main

import (
	"context"
	"time"

	"agentvm/client"
	api "agentvm/internal/api/serve"
	"agentvm/internal/network/preview"
)

// previewAPI are the links for clients of the API.
type previewAPI struct{}

func previewOf(l link) api.Preview {
	return api.Preview{ID: l.ID, VM: l.VM, Port: l.Port, Expires: l.Expires, State: string(l.State), URL: l.URL}
}

// List implements serve.Previews.
func (previewAPI) List(ctx context.Context, vm string) (list []api.Preview, err error) {
	found, err := listLinks(ctx, vm)
	for _, l := range found {
		list = append(list, previewOf(l))
	}
	return list, err
}

// Create implements serve.Previews.
func (previewAPI) Create(ctx context.Context, vm string, port uint16, lifetime time.Duration) (made api.Preview, err error) {
	err = withVM(ctx, vm, func(v *client.VM) error {
		l, err := newPreview(ctx, v, port, lifetime)
		made = previewOf(l)
		return err
	})
	return made, err
}

// Revoke implements serve.Previews.
func (previewAPI) Revoke(ctx context.Context, id string) error {
	store, err := previews(preview.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	list, err := store.List(ctx, "")
	if err != nil {
		return err
	}
	_, err = revokeOne(ctx, store, list, id)
	return err
}
