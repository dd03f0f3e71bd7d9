"""The first steps with Debian's python3-paho-mqtt: set, get, watch, delete, fence, and what only Holdfast has."""

import queue
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

INVOKE = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
CLIENT = "python"
RESPONSE = "clients/" + CLIENT + "/services/statestore/_any_/command/invoke/response"
NOTIFY = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/" + CLIENT.encode().hex().upper() + "/command/notify/"

messages = queue.Queue()
subscribed = queue.Queue()


def resp(*arguments):
    out = b"*%d\r\n" % len(arguments)
    for argument in arguments:
        out += b"$%d\r\n%s\r\n" % (len(argument), argument)
    return out


def request(client, number, *arguments, fence=None):
    properties = Properties(PacketTypes.PUBLISH)
    properties.ResponseTopic = RESPONSE
    properties.CorrelationData = b"python-request-%d" % number
    properties.UserProperty = ("__ts", "%d:0:%s" % (time.time() * 1000, CLIENT))
    if fence:
        properties.UserProperty = ("__ft", fence)
    client.publish(INVOKE, resp(*arguments), qos=1, properties=properties).wait_for_publish(10)


def expect(topic, payload):
    message = messages.get(timeout=10)
    assert (message.topic, message.payload) == (topic, payload), (message.topic, message.payload, topic, payload)


def main():
    client = mqtt.Client(client_id=CLIENT, protocol=mqtt.MQTTv5)
    client.on_message = lambda client, userdata, message: messages.put(message)
    client.on_subscribe = lambda *arguments: subscribed.put(True)
    client.connect(sys.argv[1], int(sys.argv[2]))
    client.loop_start()
    for topic in (RESPONSE, NOTIFY + "#"):
        client.subscribe(topic, qos=1)
        subscribed.get(timeout=10)
    request(client, 101, b"KEYNOTIFY", b"greeting")
    expect(RESPONSE, b"+OK\r\n")
    request(client, 102, b"SET", b"greeting", b"hello")
    expect(NOTIFY + b"greeting".hex().upper(), b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$5\r\nhello\r\n")
    expect(RESPONSE, b"+OK\r\n")
    request(client, 103, b"GET", b"greeting")
    expect(RESPONSE, b"$5\r\nhello\r\n")
    request(client, 104, b"DEL", b"greeting")
    expect(NOTIFY + b"greeting".hex().upper(), b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n")
    expect(RESPONSE, b":1\r\n")
    request(client, 105, b"SET", b"protected", b"new", fence="2000:0:lock")
    expect(RESPONSE, b"+OK\r\n")
    request(client, 106, b"SET", b"protected", b"old", fence="1000:0:lock")
    expect(RESPONSE, b"-ERR the request fencing token is a lower version than the fencing token protecting the resource\r\n")
    request(client, 107, b"KEYNOTIFY", b"line/*", b"GLOB")
    expect(RESPONSE, b"+OK\r\n")
    request(client, 108, b"TXN", resp(b"SET", b"line/1", b"a", b"NX"), resp(b"GET", b"none"), resp(b"SET", b"line/2", b"b"))
    for key, value in ((b"line/1", b"a"), (b"line/2", b"b")):
        expect(NOTIFY + key.hex().upper(), b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\n%s\r\n" % value)
    expect(RESPONSE, b"*3\r\n+OK\r\n$-1\r\n+OK\r\n")
    request(client, 109, b"TXN", resp(b"SET", b"line/1", b"c", b"NX"), resp(b"DEL", b"line/2"))
    expect(RESPONSE, b"-1\r\n")
    request(client, 110, b"SCAN", b"line/*")
    expect(RESPONSE, b"*1\r\n*2\r\n$6\r\nline/1\r\n$6\r\nline/2\r\n")
    client.disconnect()
    client.loop_stop()
    print("all steps done")


main()
