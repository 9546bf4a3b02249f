//! Which categories the blocks of an image have.

use super::open::SizeMap;
use super::strings::Strings;
use super::table::NodePosition;
use super::view::{MetadataView, bad};
use crate::error::Result;
use crate::ids::{BlockNo, CategoryId};

impl MetadataView {
    /// Names of the categories, if there are any.
    ///
    /// # Errors
    /// `Corrupt` if the table lies outside of the data.
    pub fn category_names(&self) -> Result<Option<Vec<Vec<u8>>>> {
        NodePosition::root(self.data(), &self.root)
            .member(28)?
            .read()
    }

    /// Category of a block, if categories are recorded.
    ///
    /// # Errors
    /// `Corrupt` if categories are recorded, but not for this block.
    pub fn block_category(&self, block: BlockNo) -> Result<Option<CategoryId>> {
        match &self.t.block_categories {
            None => Ok(None),
            Some(table) if block.0 < table.len() => {
                Ok(Some(CategoryId(table.get32(self.data(), block.0)?)))
            }
            Some(_) => Err(bad(format!("block {block} has no category"))),
        }
    }

    /// JSON object that describes the content of a block, if there is one.
    ///
    /// # Errors
    /// `Corrupt` if the tables are inconsistent.
    pub fn block_metadata(&self, block: BlockNo) -> Result<Option<Vec<u8>>> {
        let root = NodePosition::root(self.data(), &self.root);
        let Some(map) = root.member(32)?.value()? else {
            return Ok(None);
        };
        let Some(index) = SizeMap::resolve(map)?.find(self.data(), block.0)? else {
            return Ok(None);
        };
        let outside = || bad("category metadata index out of range");
        let list = root.member(31)?.value()?.ok_or_else(outside)?;
        let index = u32::try_from(index).map_err(|_| outside())?;
        let object = Strings::plain(list)?.get(self.data(), index)?;
        Ok(Some(object.into_owned()))
    }
}
