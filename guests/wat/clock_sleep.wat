;; Settings are fine; validate asks WASI to wait for one hour (poll_oneoff), then accepts.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 32) "{\"accepted\":true}")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    ;; One subscription at 1024: a relative timeout of the monotonic clock, in nanoseconds.
    (i32.store8 offset=1032 (i32.const 0) (i32.const 0))
    (i32.store offset=1040 (i32.const 0) (i32.const 1))
    (i64.store offset=1048 (i32.const 0) (i64.const 3600000000000))
    (drop (call $poll_oneoff (i32.const 1024) (i32.const 2048) (i32.const 1) (i32.const 3072)))
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1)))
