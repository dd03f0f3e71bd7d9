package mqttconn

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

// requestPacket returns a PUBLISH packet like those that the store receives.
func requestPacket() []byte {
	expiry, format := uint32(10), byte(0)
	return AppendPublish(nil, &packets.Publish{Topic: "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke", QoS: 1, PacketID: 1, Payload: make([]byte, 150), Properties: &packets.Properties{
		ResponseTopic:   "clients/client-1/services/statestore/_any_/command/invoke/response",
		CorrelationData: make([]byte, 16),
		MessageExpiry:   &expiry, PayloadFormat: &format, ContentType: "application/octet-stream",
		User: []packets.User{
			{Key: "__ts", Value: "1696374425000:00001:client-1"},
			{Key: "__srcId", Value: "client-1"},
			{Key: "__protVer", Value: "1.0"},
		},
	}})
}

// rereading returns a function that calls read with a reader at the beginning of the same packet.
func rereading(t testing.TB, read func(*bufio.Reader) error) func() {
	packet := requestPacket()
	source := bytes.NewReader(packet)
	reader := bufio.NewReader(source)
	return func() {
		source.Reset(packet)
		reader.Reset(source)
		if err := read(reader); err != nil {
			t.Fatal(err)
		}
	}
}

func readOwn(reader *bufio.Reader) error {
	header, size, err := peekHeader(reader, 1<<20)
	if err != nil {
		return err
	}
	_, err = readPublish(reader, header, size)
	return err
}

// A received message costs three allocations: its bytes, the text in it, and the message.
func TestReceivedMessageCostsThreeAllocations(t *testing.T) {
	if allocations := testing.AllocsPerRun(100, rereading(t, readOwn)); allocations > 3 {
		t.Errorf("%v allocations, want 3", allocations)
	}
}

func BenchmarkReadPublish(b *testing.B) {
	read := rereading(b, readOwn)
	for b.Loop() {
		read()
	}
}

// paho's own decoder, for comparison.
func BenchmarkReadPublishOfPaho(b *testing.B) {
	read := rereading(b, func(reader *bufio.Reader) error {
		_, err := packets.ReadPacket(reader)
		return err
	})
	for b.Loop() {
		read()
	}
}
