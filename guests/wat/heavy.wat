;; Settings are fine; validate computes for some 50 to 100 ms and then accepts.
(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\"valid\":true}")
  (data (i32.const 16) "\"v1\"")
  (data (i32.const 32) "{\"accepted\":true}")

  (func (export "__guest_call") (param $op_len i32) (param $len i32) (result i32)
    (local $x i64) (local $round i32)
    ;; The operations differ in the length of their names.
    (if (i32.eq (local.get $op_len) (i32.const 16)) ;; protocol_version
      (then (call $respond (i32.const 16) (i32.const 4)) (return (i32.const 1))))
    (if (i32.eq (local.get $op_len) (i32.const 17)) ;; validate_settings
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    ;; validate
    (local.set $x (i64.const 88172645463325252))
    (loop $more
      ;; xorshift: each round needs the one before.
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
      (local.set $round (i32.add (local.get $round) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $round) (i32.const 40000000))))
    ;; This is never true, but keeps a compiler from leaving out the rounds.
    (if (i64.eqz (local.get $x)) (then unreachable))
    (call $respond (i32.const 32) (i32.const 17))
    (i32.const 1)))
