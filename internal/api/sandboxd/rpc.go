package sandboxd

import (
	"net/http"
	"time"

	"connectrpc.com/connect"

	"agentvm/internal/api/rpc"
)

const service = "/process.v1.ProcessService/"

// rpcHandler serves processes, over gRPC and what else package rpc speaks.
func (s *Server) rpcHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(rpc.Unary(service+"Execute", s.execute))
	mux.Handle(rpc.Unary(service+"WriteStdin", s.writeStdin))
	mux.Handle(rpc.Unary(service+"SendSignal", s.sendSignal))
	mux.Handle(rpc.Unary(service+"ResizeTTY", s.resize))
	mux.Handle(rpc.Stream(service+"Start", s.start))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		rpc.Refuse(w, r, rpc.Errorf(connect.CodeUnimplemented, "there is no method %s", r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(pieceTime)) // httpserver takes it back when all has come
		mux.ServeHTTP(w, r)
	})
}
