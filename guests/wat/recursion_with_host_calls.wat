;; Settings are fine; validate calls itself until the stack ends, and its host twice on each level: __console_log and tracing/log.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__host_call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__console_log" (func $console_log (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 256) "kubewarden")
  (data (i32.const 272) "tracing")
  (data (i32.const 288) "log")
  (data (i32.const 512) "{\"level\":\"INFO\",\"message\":\"hello from the guest\",\"answer\":42}")
  (data (i32.const 640) "a line for the console")
  ;; The sum after the call keeps this from being a tail call.
  (func $deeper (param $a i64) (param $b i64) (result i64)
    (call $console_log (i32.const 640) (i32.const 22))
    (drop
      (call $host_call (i32.const 256) (i32.const 10) (i32.const 272) (i32.const 7)
        (i32.const 288) (i32.const 3) (i32.const 512) (i32.const 61)))
    (i64.add (local.get $a) (call $deeper (local.get $b) (i64.add (local.get $a) (i64.const 1)))))

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (drop (call $deeper (i64.const 1) (i64.const 2)))
    unreachable))
