;; Logs 4,096 lines of 1 KiB through __console_log, as many through tracing/log, and one line of
;; 1 MiB through each; then accepts. That is 10 MiB.
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
  (func $log (param $from i32) (param $len i32)
    (drop (call $host_call (i32.const 256) (i32.const 10) (i32.const 272) (i32.const 7)
      (i32.const 288) (i32.const 3) (local.get $from) (local.get $len))))

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (local $round i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    ;; The text starts at 65536. A message with 1 KiB of it is at 4096, and one with 1 MiB at 1245184.
    (memory.fill (i32.const 65536) (i32.const 120) (i32.const 1048576))
    (memory.copy (i32.const 4096) (i32.const 512) (i32.const 27))
    (memory.fill (i32.const 4123) (i32.const 120) (i32.const 1024))
    (i32.store16 (i32.const 5147) (i32.const 0x7d22))
    (memory.copy (i32.const 1245184) (i32.const 512) (i32.const 27))
    (memory.fill (i32.const 1245211) (i32.const 120) (i32.const 1048576))
    (i32.store16 (i32.const 2293787) (i32.const 0x7d22))
    (loop $more
      (call $console_log (i32.const 65536) (i32.const 1024))
      (call $log (i32.const 4096) (i32.const 1053))
      (local.set $round (i32.add (local.get $round) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $round) (i32.const 4096))))
    (call $console_log (i32.const 65536) (i32.const 1048576))
    (call $log (i32.const 1245184) (i32.const 1048605))
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1)))
