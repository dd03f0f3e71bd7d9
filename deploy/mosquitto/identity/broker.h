/* The broker's interface for plugins: one header from Mosquitto 2.1 on, several before. */
#ifndef HOLDFAST_BROKER_H
#define HOLDFAST_BROKER_H

#include <stdbool.h>
#include <stdint.h>

#include <mosquitto.h>
#if LIBMOSQUITTO_VERSION_NUMBER < 2001000
#include <mosquitto_broker.h>
#include <mosquitto_plugin.h>
#include <mqtt_protocol.h>
#else
#define HAS_CLIENT_OFFLINE
#endif

#endif
