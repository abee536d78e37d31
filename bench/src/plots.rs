//! The pictures of all benchmarks that have one, drawn again from the tables that stand in the pages.

use crate::plot::Plot;
use crate::{evaluate, isolation, memory, page, peer, slope, soak};

/// The plots of all benchmarks.
const PLOTS: [&Plot; 6] = [&evaluate::PLOT, &isolation::PLOT, &memory::PLOT, &peer::PLOT, &slope::PLOT, &soak::PLOT];

/// Draws all pictures again.
///
/// # Errors
/// When a page cannot be read, or a file cannot be written.
pub(crate) fn run() -> anyhow::Result<()> {
    PLOTS.into_iter().try_for_each(page::redraw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_show_the_pictures_of_their_tables() {
        for plot in PLOTS {
            assert!(page::is_illustrated(plot), "{}: run `cargo xtask bench plots`", plot.benchmark);
        }
    }
}
