//! What a guest sees of a review: some of its fields, each as the text that it was (docs/design/policy-abi.md, section 4).

use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::value::RawValue;

use crate::review::Review;

impl Review<'_> {
    /// What the guest sees: the fields that it may see, with `object` in place of the object. Absent fields stay absent, null ones are
    /// dropped.
    pub(crate) fn payload(&self, object: Option<&str>) -> Bytes {
        let wire = &self.wire;
        let texts = [wire.old_object, wire.options, wire.user_info].into_iter().flatten();
        let length = 1024 + object.map_or(0, str::len) + texts.map(|raw| raw.get().len()).sum::<usize>();
        let mut out = Fields { out: BytesMut::with_capacity(length), first: true };
        out.out.put_u8(b'{');
        out.field("uid", Some(self.uid()));
        self.write_circumstances(&mut out);
        out.field("object", object);
        out.raw("oldObject", wire.old_object);
        out.raw("dryRun", wire.dry_run);
        out.raw("options", wire.options);
        out.close();
        out.out.freeze()
    }

    /// What match conditions see as `request`: everything but the uid and the objects, as in an API server. `options` are left out too: no
    /// condition that reads them is judged here.
    pub(crate) fn circumstances(&self) -> Bytes {
        let mut out = Fields { out: BytesMut::with_capacity(1024), first: true };
        out.out.put_u8(b'{');
        self.write_circumstances(&mut out);
        out.raw("dryRun", self.wire.dry_run);
        out.close();
        out.out.freeze()
    }

    fn write_circumstances(&self, out: &mut Fields) {
        let wire = &self.wire;
        out.kind("kind", self.kinds[0], "kind");
        out.kind("resource", self.kinds[1], "resource");
        out.raw("subResource", wire.sub_resource);
        out.kind("requestKind", self.kinds[2], "kind");
        out.kind("requestResource", self.kinds[3], "resource");
        out.raw("requestSubResource", wire.request_sub_resource);
        out.raw("name", wire.name);
        out.raw("namespace", wire.namespace);
        out.raw("operation", wire.operation);
        out.open("userInfo");
        out.raw("username", self.user.username);
        out.raw("uid", self.user.uid);
        out.raw("groups", self.user.groups);
        out.raw("extra", self.user.extra);
        out.close();
    }
}

/// Writes JSON. The names of fields need no escapes; the values are JSON already.
struct Fields {
    out: BytesMut,
    first: bool,
}

impl Fields {
    fn name(&mut self, name: &str) {
        if !std::mem::take(&mut self.first) {
            self.out.put_u8(b',');
        }
        self.out.put_u8(b'"');
        self.out.put_slice(name.as_bytes());
        self.out.put_slice(b"\":");
    }

    fn field(&mut self, name: &str, json: Option<&str>) {
        if let Some(json) = json {
            self.name(name);
            self.out.put_slice(json.as_bytes());
        }
    }

    fn raw(&mut self, name: &str, value: Option<&RawValue>) {
        self.field(name, value.map(RawValue::get));
    }

    fn open(&mut self, name: &str) {
        self.name(name);
        self.out.put_u8(b'{');
        self.first = true;
    }

    fn close(&mut self) {
        self.out.put_u8(b'}');
        self.first = false;
    }

    fn kind(&mut self, name: &str, parts: Option<[Option<&RawValue>; 3]>, last: &str) {
        if let Some([group, version, kind]) = parts {
            self.open(name);
            self.raw("group", group);
            self.raw("version", version);
            self.raw(last, kind);
            self.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::tests::{LEAST, with};

    fn seen(body: &str) -> String {
        let review = Review::parse(body.as_bytes()).expect("a review");
        let payload = review.payload(review.object().map(RawValue::get));
        String::from_utf8(payload.to_vec()).expect("UTF-8")
    }

    #[test]
    fn absent_stays_absent() {
        assert_eq!(format!("{{\"request\":{}}}", seen(LEAST)), LEAST);
    }

    #[test]
    fn the_guest_sees_the_listed_fields_in_their_order() {
        let body = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{
            "options":{"kind":"CreateOptions"},"dryRun":false,"oldObject":null,"object":{"n": 9007199254740993, "a":[1.50]},
            "userInfo":{"extra":{"k":["v"]},"groups":["g"],"uid":"1","username":"me","secret":"no"},
            "operation":"UPDATE","namespace":"team-a","name":"\u00e9\"x","requestSubResource":"status","unknown":{"x":[1]},
            "requestResource":{"group":"apps","version":"v1","resource":"deployments","more":1},
            "requestKind":{"kind":"Deployment","version":"v1","group":"apps"},"subResource":"status",
            "resource":{"group":"apps","version":"v1","resource":"deployments"},
            "kind":{"group":"apps","version":"v1","kind":"Deployment"},"uid":"a\u0062c"}}"#;
        assert_eq!(
            seen(body),
            concat!(
                r#"{"uid":"a\u0062c","kind":{"group":"apps","version":"v1","kind":"Deployment"},"#,
                r#""resource":{"group":"apps","version":"v1","resource":"deployments"},"subResource":"status","#,
                r#""requestKind":{"group":"apps","version":"v1","kind":"Deployment"},"#,
                r#""requestResource":{"group":"apps","version":"v1","resource":"deployments"},"requestSubResource":"status","#,
                r#""name":"\u00e9\"x","namespace":"team-a","operation":"UPDATE","#,
                r#""userInfo":{"username":"me","uid":"1","groups":["g"],"extra":{"k":["v"]}},"#,
                r#""object":{"n": 9007199254740993, "a":[1.50]},"dryRun":false,"options":{"kind":"CreateOptions"}}"#,
            )
        );
        assert_eq!(Review::parse(body.as_bytes()).expect("a review").uid(), r#""a\u0062c""#);
    }

    #[test]
    fn null_is_dropped() {
        assert_eq!(seen(&with(r#""object":null,"name":null,"options":null"#)), seen(LEAST));
    }

    #[test]
    fn numbers_reach_the_guest_to_the_digit() {
        let huge = r#"{"a":123456789012345678901234567890,"b":1e999,"c":-0.0}"#;
        assert!(seen(&with(&format!("\"object\":{huge}"))).contains(huge));
    }
}
