//! Members that a newer version of the format has added.

use super::model::Metadata;
use crate::error::Result;
use crate::frozen::{Layout, Schema, TypeInfo, Value};

/// Obsolete members of the metadata: inode offsets of the first releases, which follow from other
/// members, and a member that no release has written.
const RETIRED: [i16; 3] = [13, 14, 37];

/// Names the members in the schema of metadata that this version does not know, as the path of
/// known names to it and its number: `40` for one of the metadata itself, `chunks.4` for one of
/// every chunk. Readers leave them out; [`thaw`](super::thaw) drops them.
///
/// # Errors
/// `Corrupt` if `schema` is none.
pub fn unknown_members(schema: &[u8]) -> Result<Vec<String>> {
    let schema = Schema::parse(schema)?;
    let mut unknown = Vec::new();
    let root = schema.layouts.get(usize::from(schema.root));
    inside(&schema, root, &Metadata::describe(), "", &mut unknown);
    Ok(unknown)
}

/// The type tree is a few levels deep, so recursion is fine.
fn inside(
    schema: &Schema,
    layout: Option<&Layout>,
    ty: &TypeInfo,
    path: &str,
    unknown: &mut Vec<String>,
) {
    let Some(layout) = layout else { return };
    let member = |id| {
        let field = layout.field(id)?;
        schema.layouts.get(usize::from(field.layout_id))
    };
    match ty {
        TypeInfo::Unsigned(_) | TypeInfo::Bool | TypeInfo::Bytes => {}
        TypeInfo::Optional(value) => inside(schema, member(2), value, path, unknown),
        TypeInfo::List(item) | TypeInfo::Set(item) | TypeInfo::Map(item) => {
            inside(schema, member(3), item, path, unknown);
        }
        TypeInfo::Pair(types) => {
            inside(schema, member(1), &types.0, path, unknown);
            inside(schema, member(2), &types.1, path, unknown);
        }
        TypeInfo::Struct(info) => {
            let join = |name: &str| match path {
                "" => name.to_owned(),
                path => format!("{path}.{name}"),
            };
            for known in &info.members {
                inside(
                    schema,
                    member(known.id),
                    &known.ty,
                    &join(known.name),
                    unknown,
                );
            }
            let known = |id| {
                (path.is_empty() && RETIRED.contains(&id))
                    || info.members.iter().any(|member| member.id == id)
            };
            let own = layout.fields.iter().filter(|field| !known(field.id));
            unknown.extend(own.map(|field| join(&field.id.to_string())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frozen::Field;
    use crate::metadata::{Chunk, FsOptions, freeze};

    #[test]
    fn members_of_the_future_are_named() {
        let metadata = Metadata {
            chunks: vec![Chunk {
                block: 1,
                offset: 2,
                size: 3,
            }],
            options: Some(FsOptions {
                mtime_only: true,
                ..FsOptions::default()
            }),
            ..Metadata::default()
        };
        let frozen = freeze(&metadata).unwrap();
        assert_eq!(
            unknown_members(&frozen.schema).unwrap(),
            Vec::<String>::new()
        );
        let mut schema = Schema::parse(&frozen.schema).unwrap();
        let root = usize::from(schema.root);
        let add = |schema: &mut Schema, layout: usize, id| {
            let field = Field {
                id,
                layout_id: schema.root,
                offset: 0,
            };
            schema.layouts[layout].fields.push(field);
        };
        let inner = |schema: &Schema, layout: usize, id| {
            usize::from(schema.layouts[layout].field(id).unwrap().layout_id)
        };
        add(&mut schema, root, 37);
        add(&mut schema, root, 99);
        add(&mut schema, root, 1000);
        let chunks = inner(&schema, root, 1);
        let chunk = inner(&schema, chunks, 3);
        add(&mut schema, chunk, 4);
        let options = inner(&schema, root, 18);
        let options = inner(&schema, options, 2);
        add(&mut schema, options, 77);
        assert_eq!(
            unknown_members(&schema.encode()).unwrap(),
            ["chunks.4", "options.77", "99", "1000"]
        );
        assert!(unknown_members(b"no schema").is_err());
    }
}
