;; Logs 200 lines of 1 KiB through __console_log, which is more than the share of a policy; then accepts.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__console_log" (func $console_log (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 32) "{\"accepted\":true}")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (local $line i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (memory.fill (i32.const 4096) (i32.const 120) (i32.const 1024))
    (loop $more
      (call $console_log (i32.const 4096) (i32.const 1024))
      (local.set $line (i32.add (local.get $line) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $line) (i32.const 200))))
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1)))
