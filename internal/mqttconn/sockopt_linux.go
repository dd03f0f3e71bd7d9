package mqttconn

import "syscall"

// setSocketLowWater sets SO_RCVLOWAT, socket(7), which epoll heeds as well; it is an optimisation,
// so errors do not matter.
func setSocketLowWater(fd uintptr, bytes int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes)
}

// setQuickAck has the kernel send a TCP acknowledgement that it delays (TCP_QUICKACK, tcp(7)). It
// holds for what was received so far, so it is set after each read; it is an optimisation, so
// errors do not matter.
func setQuickAck(fd uintptr) {
	_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1)
}
