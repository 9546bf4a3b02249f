//! Whether the options of a build are in range and go together.

use redwarfs_codec::ContentKind;

use crate::error::{Error, Result};
use crate::memory;
use crate::options::{BuildOptions, Order};

impl BuildOptions {
    /// Verifies ranges and combinations.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] with one line that names option and range;
    /// [`Error::MemoryLimit`] if the limit is too low for any input.
    pub fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::InvalidOption(what.to_owned()));
        if !(10..=30).contains(&self.block_size_bits) {
            return bad("block size must be between 10 and 30");
        }
        if self.window_bits > 24 {
            return bad("window size must be between 0 and 24");
        }
        if self.window_step > 8 {
            return bad("window step must be between 0 and 8");
        }
        if self.bloom_filter_size > 10 {
            return bad("bloom filter size must be between 0 and 10");
        }
        const MOST_LOOKBACK: u32 = 1 << 20;
        let orders = self
            .categories
            .values()
            .filter_map(|own| own.order.as_ref());
        for order in orders.chain([&self.order]) {
            if let Order::Versions(family) | Order::Families(family) = order
                && family.least_saving > 1000
            {
                return bad("the least saving must be between 0 and 1000 thousandths of a block");
            }
        }
        if self.lookback > MOST_LOOKBACK {
            return bad("the number of searched blocks must be between 0 and 1048576");
        }
        for own in self.categories.values() {
            if own.lookback.is_some_and(|blocks| blocks > MOST_LOOKBACK) {
                return bad("the number of searched blocks must be between 0 and 1048576");
            }
            let over = |value: Option<u32>, limit: u32| value.is_some_and(|value| value > limit);
            if over(own.window_bits, 24) || over(own.window_step, 8) {
                return bad("window size must be between 0 and 24, window step between 0 and 8");
            }
            if over(own.bloom_filter_size, 10) {
                return bad("bloom filter size must be between 0 and 10");
            }
        }
        for codec in [
            &self.compression,
            &self.schema_compression,
            &self.metadata_compression,
            &self.history_compression,
        ] {
            let available = codec.check_available();
            available.map_err(|e| Error::InvalidOption(e.to_string()))?;
        }
        categories(self)?;
        let workers = [
            Some(self.workers),
            self.scanner_workers,
            self.segmenter_workers,
        ];
        if workers.contains(&Some(0)) {
            return bad("the number of workers must be at least 1");
        }
        if self.uses_keys() && self.hook.is_none() {
            return bad("an order by keys needs a hook that gives them");
        }
        if self.hollow && !self.sparse {
            return bad("a hollow file system needs sparse files");
        }
        // What no input is small enough for is found out before any is looked at.
        memory::Watch::new(self).check_options()
    }
}

/// Verifies the options of categories.
fn categories(options: &BuildOptions) -> Result<()> {
    let bad = |what: String| Err(Error::InvalidOption(what));
    let mut seen = Vec::new();
    for categorizer in &options.categorizers {
        categorizer.check()?;
        if seen.contains(&categorizer.name()) {
            return bad(format!("categorizer given twice: {}", categorizer.name()));
        }
        seen.push(categorizer.name());
    }
    let kind = options.compression.requires();
    if kind != ContentKind::Bytes {
        return bad(format!(
            "compression '{}' cannot be used without a category: it takes {kind} only",
            options.compression
        ));
    }
    for (category, own) in &options.categories {
        if let Some(codec) = &own.compression {
            let kind = codec.requires();
            if kind != ContentKind::Bytes && kind != category.content_kind() {
                return bad(format!(
                    "compression '{codec}' cannot be used for category '{category}': it takes {kind} only"
                ));
            }
        }
    }
    Ok(())
}
