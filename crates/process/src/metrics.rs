//! The metrics that every program has beside its own.

use prometheus::{IntGauge, Opts, Registry};

use crate::{Readiness, VERSION};

/// Handles to those that change.
#[derive(Clone)]
pub(crate) struct CommonMetrics {
    ready: IntGauge,
}

impl CommonMetrics {
    /// Registers all of them.
    ///
    /// # Errors
    /// When a name is taken already.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let ready = IntGauge::new("portcullis_ready", "1 while the program is ready, as /readyz says")?;
        let build = IntGauge::with_opts(
            Opts::new("portcullis_build_info", "1, with the version of the program").const_label("version", VERSION),
        )?;
        build.set(1);
        registry.register(Box::new(ready.clone()))?;
        registry.register(Box::new(build))?;
        Ok(Self { ready })
    }

    /// What is true at the moment.
    pub(crate) fn update(&self, readiness: &Readiness) {
        self.ready.set(i64::from(readiness.is_ready()));
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    fn text(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).expect("encodes")
    }

    #[test]
    fn readiness_is_a_metric_as_well() {
        let (registry, readiness) = (Registry::new(), Readiness::default());
        let metrics = CommonMetrics::new(&registry).expect("registers");
        let latch = readiness.latch("started");
        metrics.update(&readiness);
        assert!(text(&registry).contains("\nportcullis_ready 0\n"), "{}", text(&registry));
        latch.release();
        metrics.update(&readiness);
        assert!(text(&registry).contains("\nportcullis_ready 1\n"), "{}", text(&registry));
        assert!(text(&registry).contains(&format!("portcullis_build_info{{version=\"{VERSION}\"}} 1\n")));
    }
}
