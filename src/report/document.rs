//! A JSON object whose fields keep the order in which they are added.

use serde::Serialize;
use serde_json::Value;

#[derive(Debug, Default)]
pub(crate) struct Document(Vec<(&'static str, Field)>);

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Field {
    Plain(Value),
    Document(Document),
    Documents(Vec<Document>),
}

impl Document {
    pub(super) fn new() -> Document {
        Document::default()
    }

    /// Adds a field. `None` becomes `null`.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Field>) -> Document {
        self.0.push((name, value.into()));
        self
    }

    /// Adds a field, unless its value is `None`.
    pub(super) fn with_some(self, name: &'static str, value: Option<impl Into<Field>>) -> Document {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(super) fn with_list(self, name: &'static str, documents: impl IntoIterator<Item = Document>) -> Document {
        self.with(name, Field::Documents(documents.into_iter().collect()))
    }

    /// Adds a document. `None` becomes `null`.
    pub(super) fn with_document(self, name: &'static str, document: Option<Document>) -> Document {
        self.with(name, document.map_or(Field::Plain(Value::Null), Field::Document))
    }

    pub(super) fn and(mut self, other: Document) -> Document {
        self.0.extend(other.0);
        self
    }
}

impl Serialize for Document {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl From<Document> for Field {
    fn from(document: Document) -> Field {
        Field::Document(document)
    }
}

impl<T: Into<Value>> From<T> for Field {
    fn from(value: T) -> Field {
        Field::Plain(value.into())
    }
}
