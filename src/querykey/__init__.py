"""querykey: an attention workbench. The usual import is `import querykey as qk`."""
