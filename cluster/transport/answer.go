package transport

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"holdfast/cluster/peer"
)

const (
	// maxServing bounds the calls of one connection that are served at once.
	maxServing = 64
	// maxAnonymousFrame bounds a frame, in bytes, of a caller that names no listener.
	// anonymousTimeout bounds how long frames are read from its connection.
	maxAnonymousFrame = 64 << 10
	anonymousTimeout  = time.Minute
	// writeTimeout bounds the write of one frame, of a request or an answer.
	writeTimeout = 5 * time.Second
)

var errBusy = fmt.Errorf("%w: the member serves too many calls", peer.ErrNotDone)

// serveCalls answers one caller until the connection ends, or the caller ceases to be a member.
func (t *Transport) serveCalls(conn net.Conn, caller peer.Caller) {
	reader := bufio.NewReaderSize(conn, 16<<10)
	ctx, cancel := context.WithCancel(t.ctx)
	var writing sync.Mutex
	var serving sync.WaitGroup
	slots := make(chan struct{}, maxServing)
	reply := func(number uint64, body []byte, err error) {
		code := byte(codeAnswer)
		if err == nil && len(body)+frameHeader > maxFrame {
			err = errTooLarge
		}
		if err != nil {
			code, body = codeError, peer.EncodeError(err)
		}
		writing.Lock()
		defer writing.Unlock()
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // an error shows at the write
		if writeFrame(conn, code, number, body) != nil {
			_ = conn.Close() // the reader sees the end
		}
	}
	limit := uint32(maxFrame)
	if caller.ID == "" {
		limit = maxAnonymousFrame
		_ = conn.SetReadDeadline(time.Now().Add(anonymousTimeout)) // an error shows at the read
	}
	for {
		code, number, request, err := readFrame(reader, limit)
		if err != nil {
			break
		}
		handler := t.handler.Load()
		if standing, _ := handler.Standing(caller.ID); caller.ID != "" &&
			standing == peer.Stranger {
			break // it was removed
		}
		method := peer.Method(code)
		if method.Quick() {
			body, err := handler.Handle(ctx, caller, method, request)
			reply(number, body, err)
			continue
		}
		select {
		case slots <- struct{}{}:
			serving.Go(func() {
				body, err := handler.Handle(ctx, caller, method, request)
				reply(number, body, err)
				<-slots
			})
		default:
			reply(number, nil, errBusy)
		}
	}
	cancel()
	_ = conn.Close() // nothing more is to be said
	serving.Wait()
}
