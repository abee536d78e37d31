;; Logs a line of 1 MiB through __console_log, and two events through tracing/log: one whose message has 8 KiB, and one of 1 MiB.
;; Then accepts.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__host_call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__console_log" (func $console_log (param i32 i32)))
  (memory (export "memory") 40)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 32) "{\"accepted\":true}")
  (data (i32.const 256) "kubewarden")
  (data (i32.const 272) "tracing")
  (data (i32.const 288) "log")
  (data (i32.const 512) "{\"level\":\"INFO\",\"message\":\"")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (memory.fill (i32.const 65536) (i32.const 120) (i32.const 1048576))
    (call $console_log (i32.const 65536) (i32.const 1048576))
    (call $event (i32.const 8192))
    (call $event (i32.const 1048576))
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1))

  ;; Logs an event, which begins at 1245184, with a message of this length.
  (func $event (param $length i32)
    (memory.copy (i32.const 1245184) (i32.const 512) (i32.const 27))
    (memory.fill (i32.const 1245211) (i32.const 120) (local.get $length))
    (i32.store16 offset=1245211 (local.get $length) (i32.const 0x7d22))
    (drop (call $host_call (i32.const 256) (i32.const 10) (i32.const 272) (i32.const 7)
      (i32.const 288) (i32.const 3) (i32.const 1245184) (i32.add (local.get $length) (i32.const 29))))))
