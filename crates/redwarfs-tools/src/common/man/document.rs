//! A manual as a document: chapters, paragraphs, text.

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As the text around it.
    Plain,
    /// Literal text.
    Bold,
    /// To be replaced by something.
    Italic,
}

/// Text with its looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The looks.
    pub style: Style,
    /// The text, on one line.
    pub text: String,
}

impl Span {
    pub(crate) fn new(style: Style, text: impl Into<String>) -> Self {
        Self {
            style,
            text: text.into(),
        }
    }
}

/// A part of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Text that is broken into lines as the width demands.
    Paragraph(Vec<Span>),
    /// Lines that are not filled.
    Literal(Vec<String>),
    /// Something and what it means.
    Definition {
        /// The something.
        term: Vec<Span>,
        /// The meaning.
        body: Vec<Block>,
    },
    /// An item of a list.
    Item {
        /// Its number; none in a list without order.
        number: Option<u32>,
        /// What it says.
        body: Vec<Block>,
    },
}

/// A chapter of a manual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The headline, in capitals.
    pub title: String,
    /// The contents of the chapter.
    pub blocks: Vec<Block>,
}

/// A page of the manual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manual {
    /// Name of the program or topic.
    pub name: String,
    /// The section of the manual: 1 for programs, 5 for file formats, 7 for overviews.
    pub section: u8,
    /// A short description.
    pub summary: String,
    /// The chapters, without the one about the name.
    pub sections: Vec<Section>,
}
